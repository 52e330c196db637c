"""Our side of the video benchmarks: a decoder replica, asked as the application asks it.

Frames have the size in which the shipped settings hand them on. A long clip is planned, then
decoded in parts, a number of them at once; every call is cold (a token of its own, so that nothing
is remembered from the call before).
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from app.frame_size import SizeOf, size_rule
from app.item_options import OptionRules
from app.settings import config_path, load_settings, read_model_config
from bench.video_size import fixed_size
from video.clip import Clip
from video.deployment import VideoDecoder
from video.head import open_video
from video.long_clip import LongClip, Part
from video.probe import probe
from video.source import Source

Take = Callable[[int, Clip], None]
"""(number of the first frame, frames) as they come, in any order."""


def shipped_size() -> SizeOf:
    """The size rule of the shipped settings."""
    settings = load_settings(config_path(None))
    model = read_model_config(settings)
    return size_rule(model, OptionRules.of(settings, model).frame_pixels)


def opening(data: memoryview) -> float:
    """Seconds that a decoder takes before its first part of a file that another one has planned."""
    began = time.perf_counter()
    source = Source(data)
    open_video(source, probe(source))
    return time.perf_counter() - began


def view(path: Path) -> memoryview:
    """The file's bytes, mapped: they are no memory of this process."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


@dataclass
class Costs:
    """Where the seconds of one clip went."""

    plan: float = 0.0
    parts: list[float] = field(default_factory=list)
    total: float = 0.0


class Ours:
    """A replica; `in_work` parts of a clip are decoded at once (the settings' number)."""

    def __init__(self, size_of: SizeOf, in_work: int | None = None, **options: Any) -> None:
        self.decoder = VideoDecoder(options, size_of)
        self._in_work = in_work or load_settings(config_path(None)).video.parts_in_work
        self._tokens = itertools.count()

    @classmethod
    def of_size(cls, size: tuple[int, int], **options: Any) -> Self:
        return cls(partial(fixed_size, size), **options)

    async def __aenter__(self) -> Self:
        await self.decoder.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.decoder.close()

    async def frames(self, data: memoryview, sampling: Mapping[str, object]) -> np.ndarray:
        """All chosen frames, uint8 [n, height, width, 3]."""
        found: dict[int, np.ndarray] = {}
        await self.stream(data, sampling, lambda first, clip: found.update({first: clip.frames}))
        return np.concatenate([found[first] for first in sorted(found)])

    async def stream(
        self, data: memoryview, sampling: Mapping[str, object], take: Take = lambda *_: None
    ) -> Costs:
        """Hands on the frames part by part and forgets them."""
        costs = Costs()
        began = time.perf_counter()
        token, clip = await self._begin(data, sampling)
        costs.plan = time.perf_counter() - began
        if isinstance(clip, LongClip):
            await self._parts(data, token, sampling, clip, take, costs)
        else:
            take(0, clip)
        costs.total = time.perf_counter() - began
        return costs

    async def planning(self, data: memoryview, sampling: Mapping[str, object]) -> float:
        """Seconds until the parts are known."""
        began = time.perf_counter()
        await self._begin(data, sampling)
        return time.perf_counter() - began

    async def _begin(
        self, data: memoryview, sampling: Mapping[str, object]
    ) -> tuple[str, Clip | LongClip]:
        token = f"{os.getpid()}-{next(self._tokens)}"
        return token, await self.decoder.begin_clip(data, token, sampling)

    async def _parts(
        self,
        data: memoryview,
        token: str,
        sampling: Mapping[str, object],
        clip: LongClip,
        take: Take,
        costs: Costs,
    ) -> None:
        free = asyncio.Semaphore(self._in_work)

        async def one(part: Part) -> float:
            try:
                began = time.perf_counter()
                take(
                    part.first,
                    await self.decoder.decode_part(data, token, sampling, clip.size, part),
                )
                return time.perf_counter() - began
            finally:
                free.release()

        async with asyncio.TaskGroup() as group:
            tasks = []
            for part in clip.parts:
                await free.acquire()
                tasks.append(group.create_task(one(part)))
        costs.parts = [task.result() for task in tasks]
