"""Chats with a language-model replica inside the test's process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import torch

from encoders.embedding import Embedding, Rows, RowsArray, Special
from llm.deployment import LLMReplica
from llm.reply import ReplyHead

BODY: dict[str, Any] = {
    "model": "pocket",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
}


class Client:
    def __init__(self, loop: Any, replica: LLMReplica) -> None:
        self.loop, self.replica = loop, replica

    async def collect(
        self, body: dict[str, Any], embeddings: list[Embedding]
    ) -> tuple[ReplyHead, bytes]:
        pieces = [piece async for piece in self.replica.chat(body, embeddings)]
        head = pieces[0]
        assert isinstance(head, ReplyHead)
        return head, b"".join(p for p in pieces[1:] if isinstance(p, bytes))

    def many(self, *bodies: dict[str, Any]) -> list[tuple[ReplyHead, bytes]]:
        async def run() -> list[tuple[ReplyHead, bytes]]:
            return await asyncio.gather(*(self.collect(b, []) for b in bodies))

        return self.loop.run_until_complete(run())

    def ask(self, embeddings: list[Embedding] | None = None, **changes: Any) -> Any:
        head, body = self.loop.run_until_complete(self.collect(BODY | changes, embeddings or []))
        assert head == ReplyHead(200, "application/json"), body
        return json.loads(body)

    def fail(self, embeddings: list[Embedding] | None = None, **changes: Any) -> tuple[int, Any]:
        head, body = self.loop.run_until_complete(self.collect(BODY | changes, embeddings or []))
        assert head.status >= 400
        assert len(body) < 2048
        return head.status, json.loads(body)["error"]

    def stream(self, **changes: Any) -> list[dict[str, Any]]:
        head, body = self.loop.run_until_complete(
            self.collect(BODY | {"stream": True} | changes, [])
        )
        assert head == ReplyHead(200, "text/event-stream"), body
        events = [e.removeprefix("data: ") for e in body.decode().strip().split("\n\n")]
        assert events[-1] == "[DONE]"
        return [json.loads(e) for e in events[:-1]]


def image(seed: int, n: int = 9) -> Embedding:
    rows = torch.randn(n, 192, generator=torch.Generator().manual_seed(seed)) * 0.5
    layout = (Special("<|vision_start|>"), Rows("image", n), Special("<|vision_end|>"))
    return Embedding("image", f"{seed:064x}", layout, RowsArray.from_tensor(rows))


def picture_question(*indices: int) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "media", "index": i} for i in indices]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what is it?"}]}]


def content(reply: Any) -> str:
    return str(reply["choices"][0]["message"]["content"])
