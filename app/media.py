"""From media items to embeddings: fetch, digest, encode, all items of a request at once.

An item that occurs twice in a request is fetched once and encoded once. The first failure cancels
the rest of the request's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from app.chat import MediaItem
from app.errors import ApiError, bad_request
from app.inline import Fetches, read_item
from app.item_options import ItemOptions, OptionRules
from app.stages import BadMedia, StageDied, Stages
from encoders.digest import media_digest
from encoders.embedding import Embedding
from encoders.video_layout import compose_video

T = TypeVar("T")
# Hashing more bytes than this happens in a thread.
_HASH_IN_PLACE = 1 << 20


@dataclass
class _Work:
    """What one request has begun: downloads by source, encodes by digest."""

    group: asyncio.TaskGroup
    reads: dict[tuple[str, str], asyncio.Task[bytes]] = field(default_factory=dict)
    encodes: dict[str, asyncio.Task[Embedding]] = field(default_factory=dict)


class MediaEncoder:
    """Encodes the media of requests with the stages.

    `identity` names the checkpoint and how it is run: it is part of every digest, so that two
    models never share an embedding. `interleave` is the family's rule for a clip's sound, see
    `encoders.video_layout`.
    """

    def __init__(
        self,
        stages: Stages,
        fetcher: Fetches,
        rules: OptionRules,
        identity: str,
        *,
        interleave: int = 0,
        max_item_bytes: int,
        timeout_s: float,
    ) -> None:
        self._stages = stages
        self._fetcher = fetcher
        self._rules = rules
        self._identity = identity
        self._interleave = interleave
        self._max_item_bytes = max_item_bytes
        self._timeout_s = timeout_s

    async def encode(self, items: Sequence[MediaItem]) -> list[Embedding]:
        """The embeddings of `items`, in order. Raises `ApiError` or `StageError`."""
        if not items:
            return []
        try:
            async with asyncio.timeout(self._timeout_s), asyncio.TaskGroup() as group:
                work = _Work(group)
                tasks = [group.create_task(self._item(item, work)) for item in items]
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        except TimeoutError:
            raise ApiError(
                504,
                f"the media of the request took longer than {self._timeout_s:g} seconds",
                code="timeout",
            ) from None
        return [task.result() for task in tasks]

    async def _item(self, item: MediaItem, work: _Work) -> Embedding:
        options = self._rules.options(item)
        data = await self._read(item, work)
        digest = await self._digest(item.modality, data, options.fields())
        if digest not in work.encodes:
            encode = self._encode(item, data, digest, options)
            work.encodes[digest] = work.group.create_task(encode)
        return await work.encodes[digest]

    async def _read(self, item: MediaItem, work: _Work) -> bytes:
        key = (item.encoding, item.source)
        if key not in work.reads:
            read = read_item(item, self._fetcher, self._max_item_bytes)
            work.reads[key] = work.group.create_task(read)
        return await work.reads[key]

    async def _digest(self, kind: str, data: bytes, options: Mapping[str, Any]) -> str:
        if len(data) <= _HASH_IN_PLACE:
            return media_digest(kind, data, options, self._identity)
        return await asyncio.to_thread(media_digest, kind, data, options, self._identity)

    async def _encode(
        self, item: MediaItem, data: bytes, digest: str, options: ItemOptions
    ) -> Embedding:
        try:
            if item.modality == "image":
                return await _twice(
                    lambda: self._stages.images.encode_image(data, digest, options.encode)
                )
            if item.modality == "audio":
                return await self._sound(data, digest)
            return await self._clip(data, digest, options)
        except BadMedia as failure:
            raise bad_request(
                f"{item.where}: {failure.reason}", code="invalid_media", param=item.where
            ) from None

    async def _sound(self, data: bytes, digest: str) -> Embedding:
        # Asked first, because the replica that decodes is not the one that remembers.
        found = await _twice(lambda: self._stages.audio.find(digest))
        if found is not None:
            return found
        sound = await _twice(lambda: self._stages.video.decode_sound(data))
        return await _twice(
            lambda: self._stages.audio.encode_samples(sound.samples, sound.rate, digest)
        )

    async def _clip(self, data: bytes, digest: str, options: ItemOptions) -> Embedding:
        clip = await _twice(lambda: self._stages.video.decode_clip(data, options.decode))
        sound = clip.sound
        try:
            async with asyncio.TaskGroup() as group:
                seen = group.create_task(
                    _twice(
                        lambda: self._stages.images.encode_frames(
                            clip.frames, digest, options.encode
                        )
                    )
                )
                heard = None
                if sound is not None and sound.samples.shape[-1]:
                    samples, rate = sound.samples, sound.rate
                    heard = group.create_task(
                        _twice(lambda: self._stages.audio.encode_track(samples, rate))
                    )
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        vision, grid = seen.result()
        rows = heard.result() if heard else None
        return compose_video(digest, clip.times, grid, vision, rows, interleave=self._interleave)


async def _twice(call: Callable[[], Awaitable[T]]) -> T:
    """One more try when the replica died: nothing of an encode has reached the client yet."""
    try:
        return await call()
    except StageDied:
        return await call()


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure to report: the client's own mistakes before ours."""
    flat = [
        _first(failure) if isinstance(failure, BaseExceptionGroup) else failure
        for failure in failures.exceptions
    ]
    return min(flat, key=lambda failure: not isinstance(failure, (ApiError, BadMedia)))
