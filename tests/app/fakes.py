"""Stages without models, and a small world around the gateway for tests."""

from __future__ import annotations

import asyncio
import base64
import copy
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import yaml

from app.assemble import make_gateway
from app.gateway import Gateway
from app.settings import ROOT, Settings, parse_settings
from app.stages import BadMedia, Stages
from encoders.embedding import Embedding, Rows, RowsArray, audio_layout, image_layout
from encoders.store import StoreOptions
from llm.reply import ReplyHead
from video.long_clip import LongClip, Part, SoundPart

MODEL = {"processor_config": {"fps": 1.0, "max_frames": 64}}
NAME = "mimo-pocket"


def rows(count: int) -> RowsArray:
    return RowsArray(np.zeros((count, 4), np.float32), "float32")


@dataclass
class Calls:
    """What a stage was asked, what it should do about it, and what was cancelled."""

    seen: list[tuple[str, Any]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    cancelled: int = 0
    delay: float = 0.0
    failures: list[Exception] = field(default_factory=list)
    is_ready: bool = True

    async def work(self, method: str, what: Any) -> None:
        self.seen.append((method, what))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay)
            if self.failures:
                raise self.failures.pop(0)
            if isinstance(what, bytes) and what.startswith(b"bad"):
                raise BadMedia("the data is not an image in a supported format")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def ready(self) -> bool:
        return self.is_ready

    async def stats(self) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        return {"running": self.running, "batch_sizes": {1: 2}}


class FakeImages(Calls):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Embedding] = {}

    async def find(self, digest: str) -> Embedding | None:
        return self.kept.get(digest)

    async def adopt(self, embedding: Embedding) -> None:
        self.seen.append(("adopt", embedding))

    async def encode_image(self, data: bytes, digest: str, options: Mapping[str, Any]) -> Embedding:
        await self.work("encode_image", data)
        self.seen.append(("options", dict(options)))
        return Embedding("image", digest, image_layout(2), rows(2))

    async def encode_frames(
        self, frames: Any, digest: str, options: Mapping[str, Any]
    ) -> tuple[RowsArray, tuple[int, int, int]]:
        await self.work("encode_frames", frames.shape)
        pairs = len(frames) // 2
        return rows(pairs), (pairs, 2, 2)

    async def encode_part(self, frames: Any, digest: str, options: Mapping[str, Any]) -> Embedding:
        await self.work("encode_part", frames.shape)
        self.seen.append(("options", dict(options)))
        value = np.full((len(frames) // 2, 4), frames[0, 0, 0, 0], np.float32)
        part = Embedding("video", digest, (Rows("video", len(value)),), RowsArray(value, "float32"))
        self.kept[digest] = part
        return part


class FakeAudio(Calls):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Embedding] = {}

    async def find(self, digest: str) -> Embedding | None:
        return self.kept.get(digest)

    async def encode_samples(self, samples: Any, rate: int, digest: str) -> Embedding:
        await self.work("encode_samples", (samples.shape, rate))
        count = max(1, round(samples.shape[-1] / rate * 6.25))
        return Embedding("audio", digest, audio_layout(count), rows(count))

    async def encode_track(self, samples: Any, rate: int) -> RowsArray:
        await self.work("encode_track", (samples.shape, rate))
        return rows(max(1, round(samples.shape[-1] / rate * 6.25)))

    async def encode_part(
        self, samples: Any, rate: int, digest: str, lead: int, seconds: int
    ) -> Embedding:
        await self.work("encode_part", (samples.shape, rate, lead, seconds))
        count = min(math.ceil((samples.shape[-1] / rate - lead) * 6.25), round(seconds * 6.25))
        part = Embedding("audio", digest, (Rows("audio", count),), rows(count))
        self.kept[digest] = part
        return part


@dataclass
class FakeSound:
    samples: np.ndarray
    rate: int


@dataclass
class FakeClip:
    frames: np.ndarray
    times: np.ndarray
    sound: FakeSound | None
    lost: int = 0


def long_clip(parts: int, frames: int = 4, sound_parts: int = 0, name: str = "key") -> LongClip:
    """A plan of `parts` parts with a frame every half second, and sound parts of two seconds."""
    total = parts * frames
    pictures = [Part(n * frames, frames, f"{name} {n}") for n in range(parts)]
    sounds = [SoundPart(2 * n, 2, f"{name} sound {n}") for n in range(sound_parts)]
    times = np.arange(total) * 0.5
    return LongClip(times, (8, 8), 2.0, total / 2, tuple(pictures), tuple(sounds))


class FakeVideo(Calls):
    with_sound = True

    long: LongClip | None = None
    lost: Mapping[int, int] = {}

    async def hold(self, data: bytes) -> Any:
        return data

    async def begin_clip(
        self, held: Any, token: str, sampling: Mapping[str, Any]
    ) -> FakeClip | LongClip:
        await self.work("decode_clip", held)
        self.seen.append(("sampling", dict(sampling)))
        if self.long is not None:
            return self.long
        sound = FakeSound(np.zeros((1, 16000), np.float32), 8000) if self.with_sound else None
        return FakeClip(np.zeros((4, 8, 8, 3), np.uint8), np.arange(4) * 0.5, sound)

    async def decode_part(
        self, held: Any, token: str, sampling: Mapping[str, Any], size: tuple[int, int], part: Part
    ) -> FakeClip:
        await self.work("decode_part", part.first)
        assert self.long is not None
        lost = self.lost.get(part.first, 0)
        kept = part.count - lost
        times = self.long.times[part.first : part.first + kept]
        frames = np.full((kept, *size, 3), part.first, np.uint8)
        return FakeClip(frames, times, None, lost)

    async def decode_sound_part(self, held: Any, token: str, part: SoundPart) -> FakeSound:
        await self.work("decode_sound_part", part.start)
        seconds = part.lead + part.seconds + 1
        return FakeSound(np.zeros((1, seconds * 8000), np.float32), 8000)

    async def decode_sound(self, data: bytes) -> FakeSound:
        await self.work("decode_sound", data)
        return FakeSound(np.zeros((2, 8000), np.float32), 8000)


class FakeLlm(Calls):
    """Streams `pieces`; an exception among them is raised at its place."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[Any] = [b"data: {}\n\n", b"data: [DONE]\n\n"]
        self.embeddings: list[Sequence[Embedding]] = []
        self.closed = 0

    async def chat(
        self, body: Mapping[str, Any], embeddings: Sequence[Embedding]
    ) -> AsyncGenerator[ReplyHead | bytes, None]:
        self.seen.append(("chat", copy.deepcopy(dict(body))))
        self.embeddings.append(embeddings)
        try:
            await asyncio.sleep(self.delay)
            if self.failures:
                raise self.failures.pop(0)
            if not body.get("stream"):
                yield ReplyHead(200, "application/json")
                yield b'{"choices": []}'
                return
            yield ReplyHead(200, "text/event-stream")
            for piece in self.pieces:
                await asyncio.sleep(0)
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.closed += 1

    async def models(self) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        return {"id": NAME, "max_model_len": 16384}


@dataclass
class World:
    """A gateway over fake stages."""

    gateway: Gateway
    images: FakeImages
    audio: FakeAudio
    video: FakeVideo
    llm: FakeLlm

    async def post(self, body: Any = None, **kwargs: Any) -> httpx.Response:
        if body is not None:
            kwargs["json"] = body
        async with self.client() as client:
            return await client.post("/v1/chat/completions", **kwargs)

    async def get(self, path: str) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.gateway)  # type: ignore[arg-type]
        return httpx.AsyncClient(transport=transport, base_url="http://test")


def settings(**sections: dict[str, Any]) -> Settings:
    """The pocket settings with some keys of some sections changed."""
    document = yaml.safe_load((ROOT / "configs/pocket.yaml").read_text())
    for name, changes in sections.items():
        document.setdefault(name, {}).update(changes)
    return parse_settings(document, "test")


def world(store: StoreOptions | None = None, **sections: dict[str, Any]) -> World:
    images, audio, video, llm = FakeImages(), FakeAudio(), FakeVideo(), FakeLlm()
    stages = Stages(images, audio, video, llm)
    gateway = make_gateway(settings(**sections), MODEL, "identity", stages, store)
    return World(gateway, images, audio, video, llm)


def data_uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(data: bytes = b"picture", **extra: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_uri(data), **extra}}


def audio_part(data: bytes = b"sound") -> dict[str, Any]:
    text = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}


def video_part(data: bytes = b"clip", **extra: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_uri(data, "video/mp4"), **extra}}


def text(value: str = "hello") -> dict[str, Any]:
    return {"type": "text", "text": value}


def chat(*parts: dict[str, Any], **extra: Any) -> dict[str, Any]:
    content: Any = list(parts) if parts else "hello"
    return {"model": NAME, "messages": [{"role": "user", "content": content}], **extra}


async def until(condition: Callable[[], bool], seconds: float = 2.0) -> None:
    """Wait for a condition, or fail."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
