"""From a clip's bytes to its embedding: at once, or a long clip part by part.

Parts are looked up before they are decoded, and while the frames of one part are encoded the next
ones are decoded: memory holds the parts in work, however long the clip is. No part depends on
another, so each may be decoded by another replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.item_options import ItemOptions
from app.progress import Board
from app.retry import first_failure, twice
from app.stages import BadMedia, Clip, RowsGone, Stages
from encoders.digest import content_digest
from encoders.embedding import Embedding, RowsArray
from encoders.store import RowsLost
from encoders.video_layout import compose_parts, compose_video
from video.long_clip import LongClip, Part, SoundPart

# Encodes of a part whose rows are evicted each time before they can be read.
_TRIES = 3


@dataclass(frozen=True)
class Lookup:
    """`find`: what this process can look up itself, by digest. `load`: an embedding's rows as an
    array, wherever they are kept; raises `RowsLost`."""

    find: Callable[[str], Embedding | None]
    load: Callable[[Embedding], Awaitable[RowsArray]]


class ClipEncoder:
    """Encodes clips with the stages.

    `identity`, `interleave`: see `MediaEncoder`. `in_work`: parts of one clip in work at once.
    """

    def __init__(
        self,
        stages: Stages,
        lookup: Lookup,
        board: Board,
        identity: str,
        *,
        interleave: int,
        in_work: int,
    ) -> None:
        self._stages = stages
        self._lookup = lookup
        self._board = board
        self._identity = identity
        self._interleave = interleave
        self._in_work = in_work

    async def encode(self, data: bytes, digest: str, options: ItemOptions) -> Embedding:
        """The embedding of a clip. Raises `BadMedia` or `StageError`."""
        video = self._stages.video
        held = await video.hold(data)
        begun = await twice(lambda: video.begin_clip(held, digest, options.decode))
        if not isinstance(begun, LongClip):
            return await self._whole(begun, digest, options)
        parts = _Parts(self._stages, self._lookup, self._identity, held, digest, options, begun)
        self._board.begin(digest, len(begun.parts) + len(begun.sound))
        try:
            await parts.run(self._in_work, lambda: self._board.step(digest))
        finally:
            self._board.end(digest)
        return await asyncio.to_thread(parts.compose, self._interleave)

    async def _whole(self, clip: Clip, digest: str, options: ItemOptions) -> Embedding:
        images, audio = self._stages.images, self._stages.audio
        sound = clip.sound
        try:
            async with asyncio.TaskGroup() as group:
                seen = group.create_task(
                    twice(lambda: images.encode_frames(clip.frames, digest, options.encode))
                )
                heard = None
                if sound is not None and sound.samples.shape[-1]:
                    samples, rate = sound.samples, sound.rate
                    heard = group.create_task(twice(lambda: audio.encode_track(samples, rate)))
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None
        vision, grid = seen.result()
        rows = heard.result() if heard else None
        return compose_video(digest, clip.times, grid, vision, rows, interleave=self._interleave)


class _Parts:
    """The parts of one long clip, and what has come of them."""

    def __init__(
        self,
        stages: Stages,
        lookup: Lookup,
        identity: str,
        held: Any,
        digest: str,
        options: ItemOptions,
        clip: LongClip,
    ) -> None:
        self._stages = stages
        self._lookup = lookup
        self._identity = identity
        self._held = held
        self._digest = digest
        self._sampling = options.decode
        self._encode = {**options.encode, "sampled_frames": len(clip.times)}
        self._pixels = options.encode
        self._clip = clip
        self._vision: dict[int, RowsArray] = {}
        self._times: dict[int, np.ndarray] = {}
        self._sound: dict[int, RowsArray] = {}

    async def run(self, in_work: int, step: Callable[[], None]) -> None:
        """Works through all parts in the order of time, `in_work` at once."""
        times = self._clip.times
        todo: list[tuple[float, Part | SoundPart]] = [
            *((float(times[part.first]), part) for part in self._clip.parts),
            *((float(part.start), part) for part in self._clip.sound),
        ]
        todo.sort(key=lambda item: item[0])
        free = asyncio.Semaphore(in_work)

        async def one(part: Part | SoundPart) -> None:
            try:
                await (self._look(part) if isinstance(part, Part) else self._listen(part))
            finally:
                free.release()
            step()

        try:
            async with asyncio.TaskGroup() as group:
                for _, part in todo:
                    await free.acquire()
                    group.create_task(one(part))
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None

    async def _look(self, part: Part) -> None:
        """The part's frames to rows."""
        digest = content_digest("part", self._identity, self._pixels, part.key)
        times = self._clip.times[part.first : part.first + part.count]

        async def encode() -> Embedding | RowsArray | None:
            nonlocal times
            video, images = self._stages.video, self._stages.images
            size = self._clip.size
            decoded = await twice(
                lambda: video.decode_part(self._held, self._digest, self._sampling, size, part)
            )
            if not decoded.lost:
                return await twice(lambda: images.encode_part(decoded.frames, digest, self._encode))
            # Damaged: other frames than the part's digest stands for.
            times = decoded.times
            if not len(decoded.frames):
                return None
            rows, _ = await twice(
                lambda: images.encode_frames(decoded.frames, digest, self._encode)
            )
            return rows

        rows = await self._rows(digest, self._stages.images.find, encode)
        self._times[part.first] = times
        if rows is not None:
            self._vision[part.first] = rows

    async def _listen(self, part: SoundPart) -> None:
        """The part's sound to rows."""
        digest = content_digest("sound part", self._identity, part.key)

        async def encode() -> Embedding | None:
            video, audio = self._stages.video, self._stages.audio
            sound = await twice(lambda: video.decode_sound_part(self._held, self._digest, part))
            if sound.samples.shape[-1] <= part.lead * sound.rate:
                return None
            return await twice(
                lambda: audio.encode_part(
                    sound.samples, sound.rate, digest, part.lead, part.seconds
                )
            )

        rows = await self._rows(digest, self._stages.audio.find, encode)
        if rows is not None:
            self._sound[part.start] = rows

    async def _rows(
        self,
        digest: str,
        ask: Callable[[str], Awaitable[Embedding | None]],
        encode: Callable[[], Awaitable[Embedding | RowsArray | None]],
    ) -> RowsArray | None:
        """The rows of a digest: from this node, from the replica that is asked for it, or anew."""
        for _ in range(_TRIES):
            found: Embedding | RowsArray | None = self._lookup.find(digest)
            if found is None:
                found = await twice(lambda: ask(digest)) or await encode()
            if not isinstance(found, Embedding):
                return found
            try:
                return await self._lookup.load(found)
            except RowsLost:
                continue
        raise RowsGone("embedding store", "rows are evicted faster than they can be read")

    def compose(self, interleave: int) -> Embedding:
        """Raises `BadMedia` when nothing was decoded."""
        if not self._vision:
            raise BadMedia("no frame of the video can be decoded")
        return compose_parts(
            self._digest,
            np.concatenate([self._times[first] for first in sorted(self._times)]).tolist(),
            [self._vision[first] for first in sorted(self._vision)],
            [self._sound[start] for start in sorted(self._sound)],
            interleave=interleave,
        )
