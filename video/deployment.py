"""The VideoDecoder replica: all work on moving pictures and sound, outside this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from video.clip import Clip, SizeOf, Sound
from video.options import DecoderOptions
from video.pool import WorkerPool
from video.protocol import Job


class VideoDecoder:
    """Decodes files in worker processes; a plain class, usable with and without Ray Serve.

    A codec that crashes or hangs takes down one worker process: the file is tried once more on a
    new one, then refused, and the replica lives on. Frames come back through shared memory.

    options: `DecoderOptions`, or a settings section by name.
    size_of: (number of frames, height, width) -> (height, width) of the frames to hand on. A
        callable that pickles by name (a function, or a partial of one) and lives in modules that
        load quickly, since the workers call it. Without it frames keep their native size, or are
        shrunk to what `memory_bytes` holds.
    """

    def __init__(
        self,
        options: DecoderOptions | Mapping[str, Any] | None = None,
        size_of: SizeOf | None = None,
    ) -> None:
        self._options = DecoderOptions.of(options)
        self._limits = self._options.limits()
        self._size_of = size_of
        self._pool = WorkerPool(self._options.workers, self._options.max_waiting)

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
        defaults = self._options.sampling()
        options = defaults.updated(sampling or {}, self._limits.sampled_frames)
        return await self._pool.run(
            Job(
                size=len(data),
                limits=self._limits,
                options=options,
                size_of=self._size_of,
                sound=sound,
                chunks=self._options.chunks,
                threads=self._options.chunks,
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
