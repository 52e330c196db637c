"""The image encoder replica: encoded images and decoded frames to embedding rows.

torch is imported when it is constructed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from encoders.embedding import Embedding, Rows, RowsArray, image_layout
from encoders.encode_once import Encoded, EncodeOnce
from encoders.metrics import batch_metrics
from encoders.options import ImageEncoderOptions
from encoders.replica import EncoderReplica

if TYPE_CHECKING:
    import numpy as np

    from encoders.vision.runtime import ClipPlan, PixelLimits, Prepared

# The cost of a preparation is the bytes of a file. A byte of frames costs a sixteenth of that:
# nothing is decoded.
SIZE_BOUNDS = (1 << 14, 1 << 17, 1 << 20)
FRAME_BYTES_PER_COST = 16

# What a part of a clip costs in all, as a multiple of what it costs the tower.
DECODING = 3.0

# Patches of a picture of half a million pixels: the guess for the first one, before it is decoded.
FIRST_GUESS = 2048


class VideoRows(NamedTuple):
    """Vision rows [t*h*w/merge², hidden] of a clip in order, and its grid in patches."""

    rows: RowsArray
    grid: tuple[int, int, int]


class ImageEncoder(EncoderReplica["Prepared"]):
    """Decodes, pre-processes and encodes images, many requests to a forward pass.

    `checkpoint`: directory with config.json and `visual.*` tensors. `options`:
    `ImageEncoderOptions` or a settings section with its keys. `put`: what an image's rows go
    through before they are returned; `ray.put` makes them a reference into the object store.
    """

    def __init__(
        self,
        checkpoint: str,
        options: ImageEncoderOptions | Mapping[str, Any] | None = None,
        put: Callable[[RowsArray], Any] | None = None,
    ) -> None:
        from encoders.vision.runtime import PixelLimits, VisionRuntime

        given = ImageEncoderOptions.of(options)
        self._runtime = VisionRuntime(checkpoint, given)
        self._parse_limits = PixelLimits.parse
        super().__init__(
            given,
            EncodeOnce(given.cache_bytes, put, given.store),
            self._runtime.forward,
            max_work=given.max_batch_patches,
            threads=given.decode_threads,
            bounds=SIZE_BOUNDS,
            first_guess=min(FIRST_GUESS, given.max_batch_patches),
            name="vision",
            observer=batch_metrics("image", "patches"),
        )
        if given.warm_up:
            items = self._runtime.warm_up_items()
            for batch in ([items[0]], items, items * 2):
                self._batcher.warm_up(batch)

    async def encode_image(
        self, data: bytes, digest: str, options: Mapping[str, object] | None = None
    ) -> Embedding:
        """The embedding of an encoded image; `options` may hold min_pixels and max_pixels.

        `digest` must cover data and options: equal digests are encoded once. Raises `MediaError`
        for bad input and `EncoderBusy` after `queue_timeout_s` without a forward pass.
        """
        limits = self._parse_limits(options)
        return await self._once.get(digest, lambda: self._encode_image(data, digest, limits))

    async def _encode_image(self, data: bytes, digest: str, limits: PixelLimits) -> Encoded:
        deadline = self._deadline()
        with self._backlog.pending() as pending:
            prepare = partial(self._prepare, data, limits)
            item, seconds = await self._workers.run(prepare, len(data), deadline)
            self._backlog.known(pending, item.work)
            rows = await self._batcher.submit(item, item.work, deadline)
        seconds += item.work * self._batcher.stats.seconds_per_work
        return Encoded(Embedding("image", digest, image_layout(len(rows)), rows), seconds)

    def _prepare(self, data: bytes, limits: PixelLimits) -> tuple[Prepared, float]:
        """The prepared image and how long that took in this thread, without waiting for it."""
        start = perf_counter()
        return self._runtime.prepare_image(data, limits), perf_counter() - start

    async def encode_frames(
        self,
        frames: np.ndarray,
        digest: str,
        options: Mapping[str, object] | None = None,
    ) -> VideoRows:
        """Rows of a clip's sampled frames uint8 [T, H, W, 3] (upright RGB, in order).

        Frames are taken two by two, an odd count repeats the last one; all are resized to one size
        within the pixel budget of the whole clip. `options` may hold min_pixels, max_pixels,
        total_max_pixels and, if `frames` is only a part of the clip, sampled_frames = frames of the
        whole clip (parts must start at even frames). Raises `MediaError` for bad input,
        `EncoderBusy` when a part gets no forward pass for `queue_timeout_s`. `digest` names the
        clip; the rows are part of its embedding (`compose_video`) and never go through `put`.
        """
        plan = self._runtime.plan_clip(frames, self._parse_limits(options))
        parts = [partial(self._encode_part, frames[part], plan) for part in plan.chunks]
        with self._backlog.pending(plan.work):
            return VideoRows(await self._in_turns(parts), plan.grid)

    async def encode_part(
        self, frames: np.ndarray, digest: str, options: Mapping[str, object] | None = None
    ) -> Embedding:
        """As `encode_frames` for a part of a clip, cached under a digest of its own.

        `options` must say sampled_frames; `digest` must cover frames and options. The layout is the
        rows alone.
        """

        async def encode() -> Encoded:
            rows, _ = await self.encode_frames(frames, digest, options)
            patches = len(rows) * self._runtime.config.merge_unit
            # Having it again also takes decoding, which costs more than the tower.
            seconds = DECODING * patches * self._batcher.stats.seconds_per_work
            return Encoded(Embedding("video", digest, (Rows("video", len(rows)),), rows), seconds)

        return await self._once.get(digest, encode)

    async def _encode_part(self, frames: np.ndarray, plan: ClipPlan) -> RowsArray:
        deadline = self._deadline()
        prepare = partial(self._runtime.prepare_frames, frames, plan)
        cost = frames.nbytes // FRAME_BYTES_PER_COST
        item = await self._workers.run(prepare, cost, deadline)
        return await self._batcher.submit(item, item.work, deadline)
