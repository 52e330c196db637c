"""Chats with an application of several language-model replicas, timed by their client."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import yaml

from bench.application import ROOT, application

CONFIG = ROOT / "configs/pocket.yaml"


@dataclass(frozen=True)
class Answer:
    """An answered chat: its text, ``time.perf_counter`` when it was asked and when each piece of
    the answer came, prompt tokens and those of them cached, and tokens of the answer."""

    text: str
    asked: float
    pieces: Sequence[float]
    prompt: int
    cached: int
    tokens: int

    @property
    def ttft(self) -> float:
        """Seconds to the first piece."""
        return self.pieces[0] - self.asked


@contextmanager
def replicas(count: int, policy: str) -> Iterator[str]:
    """The pocket application with so many language-model replicas and this router; its address."""
    document = yaml.safe_load(CONFIG.read_text())
    llm = document["llm"]
    llm["replicas"], llm["num_cpus"] = count, 0.25
    llm["router"] = {**llm.get("router", {}), "policy": policy}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(document))
        with application(str(path)) as running:
            yield running.url


async def ask(
    client: httpx.AsyncClient, url: str, messages: list[dict[str, Any]], most: int
) -> Answer:
    """The streamed answer of ``most`` tokens. Raises httpx.HTTPError when refused."""
    body = {
        "model": "mimo-pocket",
        "messages": messages,
        "max_tokens": most,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    asked, text = time.perf_counter(), ""
    pieces: list[float] = []
    usage: dict[str, Any] = {}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = orjson.loads(line[6:])
            if event.get("choices"):
                pieces.append(time.perf_counter())
            for choice in event.get("choices") or ():
                text += choice["delta"].get("content") or ""
            usage = event.get("usage") or usage
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or 0
    return Answer(text, asked, pieces, usage["prompt_tokens"], cached, usage["completion_tokens"])
