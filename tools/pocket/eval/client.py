"""Questions to a running application by OpenAI's chat API, media as data URIs."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import httpx

from tools.pocket.data.clip_file import encode_clip, encode_sound
from tools.pocket.data.sample import Media, Message, Picture, Sample, Sound

MAX_TOKENS = 256


@dataclass(frozen=True)
class Answer:
    """An assistant message, its number of tokens, and the verify steps that made it (0: no MTP)."""

    message: Message
    tokens: int
    verify_steps: int


@dataclass(frozen=True)
class Question:
    """A turn of a sample: the conversation so far, over the wire, and the expected answer."""

    sample: Sample
    messages: list[Message]
    wanted: Message


def media_part(medium: Media, number: int) -> dict[str, Any]:
    """A content part with the medium's file; every second picture is a JPEG."""
    if isinstance(medium, Picture):
        form = "JPEG" if number % 2 else "PNG"
        data = medium.encoded("JPEG" if number % 2 else "PNG")
        return {"type": "image_url", "image_url": {"url": _uri(data, f"image/{form.lower()}")}}
    if isinstance(medium, Sound):
        text = base64.b64encode(encode_sound(medium)).decode()
        return {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}
    return {"type": "video_url", "video_url": {"url": _uri(encode_clip(medium), "video/mp4")}}


def _uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def questions(sample: Sample, number: int = 0) -> list[Question]:
    """Every assistant turn of a sample, each asked after the true turns before it."""
    parts = [media_part(medium, number + k) for k, medium in enumerate(sample.media)]
    wire = [_wired(message, parts) for message in sample.conversation]
    return [
        Question(sample, wire[:i], message)
        for i, message in enumerate(sample.conversation)
        if message["role"] == "assistant" and not (message.get("tool_calls") and i + 1 < len(wire))
    ]


def _wired(message: Message, parts: list[dict[str, Any]]) -> Message:
    wired = dict(message)
    if isinstance(message.get("content"), list):
        wired["content"] = [
            parts[part["index"]] if part["type"] == "media" else part for part in message["content"]
        ]
    if message.get("tool_calls"):
        wired["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _text(call)}}
            for call in message["tool_calls"]
        ]
    return wired


def _text(call: dict[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


class Client:
    """Asks one application. Raises ``RuntimeError`` with the body of an answer that is no 200."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=300, trust_env=False)
        self.model: str = self._http.get("/v1/models").raise_for_status().json()["data"][0]["id"]

    def ask(self, question: Question, greedy: bool = False) -> Answer:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": question.messages,
            "max_tokens": MAX_TOKENS,
            "chat_template_kwargs": {"enable_thinking": question.sample.thinking},
            "return_spec_tokens_details": True,
        }
        if question.sample.tools:
            body["tools"] = list(question.sample.tools)
        if greedy:
            body["temperature"] = 0
        response = self._http.post("/v1/chat/completions", json=body)
        if response.status_code != 200:
            raise RuntimeError(f"HTTP {response.status_code}: {response.text[:500]}")
        document = response.json()
        extension = document.get("sglext") or {}
        details = extension.get("spec_tokens_details") or {}
        return Answer(
            document["choices"][0]["message"],
            int(document["usage"]["completion_tokens"]),
            int(details.get("spec_verify_ct", 0)),
        )

    def close(self) -> None:
        self._http.close()
