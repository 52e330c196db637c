"""The fake stages as deployments: constructors of the real ones, and a temper set by the input.

An image or a chat text of "die", "fail" or "slow" makes its stage do that; what was cancelled is
appended to the file named by OMNISERVE_FAKES_LOG.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from encoders.embedding import Embedding
from encoders.errors import MediaError
from llm.reply import ReplyHead
from tests.app.fakes import FakeAudio, FakeImages, FakeLlm, FakeVideo


def note(event: str) -> None:
    path = os.environ.get("OMNISERVE_FAKES_LOG")
    if path:
        with open(path, "a") as log:
            log.write(event + "\n")


async def temper(mood: str, who: str) -> None:
    note(f"{who} {mood[:4]}")
    if mood == "die":
        os._exit(1)
    if mood == "fail":
        raise RuntimeError("secret detail")
    if mood == "bad":
        raise MediaError("the data is not an image in a supported format")
    if mood == "slow":
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            note(f"{who} cancelled")
            raise


class ImageEncoder(FakeImages):
    def __init__(self, *arguments: Any) -> None:
        super().__init__()

    async def encode_image(self, data: bytes, digest: str, options: Mapping[str, Any]) -> Embedding:
        await temper(data[:4].decode("latin-1").strip(), "images")
        return await super().encode_image(data, digest, options)


class AudioEncoder(FakeAudio):
    def __init__(self, *arguments: Any) -> None:
        super().__init__()


class VideoDecoder(FakeVideo):
    def __init__(self, *arguments: Any) -> None:
        super().__init__()


class LLMReplica(FakeLlm):
    def __init__(self, *arguments: Any) -> None:
        super().__init__()

    async def chat(
        self, body: Mapping[str, Any], embeddings: Sequence[Embedding], route: Any = None
    ) -> AsyncGenerator[ReplyHead | bytes, None]:
        mood = body["messages"][0]["content"]
        if mood in ("bad", "fail", "slow", "die"):
            await temper(mood, "llm")
        if mood == "long":
            yield ReplyHead(200, "text/event-stream")
            try:
                for number in range(300):
                    yield f"data: {number}\n\n".encode()
                    await asyncio.sleep(0.1)
            finally:
                note("llm closed")
            return
        if mood == "three":
            yield ReplyHead(200, "text/event-stream")
            for number in range(3):
                yield f"data: {number}\n\n".encode()
            await asyncio.sleep(0.2)
            os._exit(1)
        async for piece in super().chat(body, embeddings):
            yield piece


STAGES = {
    name: f"tests.app.serve_fakes:{kind}"
    for name, kind in (
        ("ImageEncoder", "ImageEncoder"),
        ("AudioEncoder", "AudioEncoder"),
        ("VideoDecoder", "VideoDecoder"),
        ("LLM", "LLMReplica"),
    )
}
