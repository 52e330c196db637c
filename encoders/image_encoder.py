"""The image encoder replica: encoded images and decoded frames to embedding rows.

A plain class: `app/` wraps it for Ray Serve, tests call it directly. torch is imported when it is
constructed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from encoders.batcher import Batcher, BatchLimits
from encoders.embedding import Embedding, RowsArray, image_layout
from encoders.encode_once import Encoded, EncodeOnce
from encoders.options import ImageEncoderOptions

if TYPE_CHECKING:
    import numpy as np

    from encoders.vision.runtime import ClipPlan, PixelLimits, Prepared

# Parts of one clip that are prepared or wait for the tower at once: the next part is prepared
# while one is encoded, and a long clip neither fills the memory nor the queue.
CLIP_PARTS_IN_FLIGHT = 2


class VideoRows(NamedTuple):
    """Vision rows [t*h*w/merge², hidden] of a clip in order, and its grid in patches."""

    rows: RowsArray
    grid: tuple[int, int, int]


class ImageEncoder:
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

        self._options = ImageEncoderOptions.of(options)
        self._runtime = VisionRuntime(checkpoint, self._options)
        self._parse_limits = PixelLimits.parse
        self._once = EncodeOnce(self._options.cache_bytes, put, self._options.store)
        self._workers = ThreadPoolExecutor(
            self._options.decode_threads, thread_name_prefix="image-prepare"
        )
        limits = BatchLimits(
            max_work=self._options.max_batch_patches,
            max_items=self._options.max_batch_items,
            max_wait=self._options.max_wait_ms / 1000,
        )
        self._batcher: Batcher[Prepared, RowsArray] = Batcher(
            self._runtime.forward, limits, name="vision-forward"
        )
        if self._options.warm_up:
            items = self._workers.submit(self._runtime.warm_up_items).result()
            for batch in ([items[0]], items, items * 2):
                self._batcher.warm_up(batch)

    async def encode_image(
        self, data: bytes, digest: str, options: Mapping[str, object] | None = None
    ) -> Embedding:
        """The embedding of an encoded image; `options` may hold min_pixels and max_pixels.

        `digest` must cover data and options: equal digests are encoded once. Raises `MediaError`
        for bad input.
        """
        limits = self._parse_limits(options)
        return await self._once.get(digest, lambda: self._encode_image(data, digest, limits))

    async def _encode_image(self, data: bytes, digest: str, limits: PixelLimits) -> Encoded:
        loop = asyncio.get_running_loop()
        item, seconds = await loop.run_in_executor(self._workers, self._prepare, data, limits)
        rows = await self._batcher.submit(item, item.work)
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
        whole clip (parts must start at even frames). Raises `MediaError` for bad input. `digest`
        names the clip; the rows are part of its embedding (`compose_video`) and never go through
        `put`.
        """
        plan = self._runtime.plan_clip(frames, self._parse_limits(options))
        free = asyncio.Semaphore(CLIP_PARTS_IN_FLIGHT)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._encode_part(frames[part], plan, free))
                    for part in plan.chunks
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return VideoRows(RowsArray.concat([task.result() for task in tasks]), plan.grid)

    async def _encode_part(
        self, frames: np.ndarray, plan: ClipPlan, free: asyncio.Semaphore
    ) -> RowsArray:
        async with free:
            loop = asyncio.get_running_loop()
            item = await loop.run_in_executor(
                self._workers, self._runtime.prepare_frames, frames, plan
            )
            return await self._batcher.submit(item, item.work)

    async def find(self, digest: str) -> Embedding | None:
        """The cached embedding of an item, or None: a caller need not decode what is found."""
        return self._once.find(digest)

    async def adopt(self, embedding: Embedding, digest: str) -> None:
        """Keep a clip of another node in this one's store; `digest` is for the router.

        Raises `RowsLost` when that node does not have it any more.
        """
        await self._once.adopt(embedding)

    async def ready(self) -> bool:
        """True: a replica exists only once its model is loaded and warm."""
        return True

    async def stats(self) -> dict[str, Any]:
        """Batch, cache and single-flight statistics, and queued work in patches."""
        return {**self._batcher.report(), **self._once.report()}

    async def check(self) -> None:
        """Raises `AssertionError` when the cache or the flights are not consistent."""
        self._once.check()

    async def close(self) -> None:
        """Fail what waits and free the threads."""
        await self._batcher.close()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._once.close()
