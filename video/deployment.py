"""The VideoDecoder replica: all work on moving pictures and sound, outside this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from video.clip import Clip, SizeOf, Sound
from video.limits import Limits
from video.pool import WorkerPool
from video.protocol import Job
from video.sampling import SamplingOptions


class VideoDecoder:
    """Decodes files in worker processes; a plain class, usable with and without Ray Serve.

    A codec that crashes or hangs takes down one worker process: the file is tried once more on a
    new one, then refused, and the replica lives on. Frames come back through shared memory.

    workers: processes, each decoding one file at a time.
    waiting: files that may queue beyond those.
    limits: `Limits`, or their values by name.
    defaults: sampling options that hold where a request gives none.
    size_of: (number of frames, height, width) -> (height, width) of the frames to hand on; a
        function that can be imported by name, from modules that load quickly, since the workers
        call it. Without it frames keep their native size.
    chunks: chunks that a clip is cut into, decoded on as many threads of its worker.
    """

    def __init__(
        self,
        workers: int = 2,
        waiting: int = 64,
        limits: Limits | Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        size_of: SizeOf | None = None,
        chunks: int = 1,
    ) -> None:
        self._limits = limits if isinstance(limits, Limits) else Limits(**(limits or {}))
        self._defaults = SamplingOptions(**(defaults or {}))
        self._size_of = size_of
        self._chunks = chunks
        self._pool = WorkerPool(workers, waiting)

    async def ready(self) -> bool:
        """True once every worker process has started; raises DecoderCrashed when one cannot."""
        await self._pool.ready()
        return True

    async def decode_clip(
        self, data: bytes, sampling: Mapping[str, object] | None = None, sound: bool = True
    ) -> Clip:
        """The chosen frames of a video file, with their times and (if wanted) its sound.

        sampling: the request's keys of `SamplingOptions`. Raises MediaError for a file or options
        that cannot work, DecoderBusy and DecoderCrashed when another replica might do better.
        """
        self._limits.check_bytes(len(data))
        options = self._defaults.updated(sampling or {}, self._limits.sampled_frames)
        return await self._pool.run(
            Job(
                size=len(data),
                limits=self._limits,
                options=options,
                size_of=self._size_of,
                sound=sound,
                chunks=self._chunks,
                threads=self._chunks,
            ),
            data,
        )

    async def decode_sound(self, data: bytes) -> Sound:
        """The sound of an audio or video file, from its own first sample on. Raises as above."""
        self._limits.check_bytes(len(data))
        return await self._pool.run(Job(len(data), self._limits, options=None), data)

    def close(self) -> None:
        """Ends the worker processes at once."""
        self._pool.close()

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self.close()
