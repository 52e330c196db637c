"""The VideoDecoder replica: all work on moving pictures and sound, outside this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from video.budget import Account
from video.clip import Clip, SizeOf, Sound
from video.held import HeldFiles
from video.long_clip import Begin, Cut, DecodePart, DecodeSoundPart, LongClip, Part, SoundPart
from video.options import DecoderOptions
from video.pool import WorkerPool
from video.protocol import Job, Work
from video.sampling import SamplingOptions

ACCOUNTS = 256
"""Files whose time is remembered."""


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
        self._files = HeldFiles()
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._pool = WorkerPool(self._options.processes, self._options.max_waiting)

    async def ready(self) -> bool:
        """True once every worker process has started; raises DecoderCrashed when one cannot."""
        await self._pool.ready()
        return True

    async def stats(self) -> dict[str, Any]:
        """Work in progress, counters (`WorkerPool.report`), and files held for their parts."""
        files = {"held_files": len(self._files), "held_bytes": self._files.size}
        return {**self._pool.report(), **files}

    async def decode_clip(
        self, data: bytes, sampling: Mapping[str, object] | None = None, sound: bool = True
    ) -> Clip:
        """The chosen frames of a video file, with their times and (if wanted) its sound.

        sampling: the request's keys of `SamplingOptions`. Raises MediaError for a file or options
        that cannot work, DecoderBusy and DecoderCrashed when another replica might do better.
        """
        self._limits.check_bytes(len(data))
        options = self._sampling(sampling)
        return await self._pool.run(
            Job(
                size=len(data),
                limits=self._limits,
                options=options,
                size_of=self._size_of,
                sound=sound,
                threads=self._options.clip_threads,
            ),
            data,
        )

    async def begin_clip(
        self, data: Any, token: str, sampling: Mapping[str, object] | None = None
    ) -> Clip | LongClip:
        """A short clip as `decode_clip` gives it; of a long one the plan, to be asked for in parts.

        data: the file as bytes or as a uint8 array. token: names these bytes; a replica that had
        them of late takes no other copy.
        """
        options = self._sampling(sampling)
        cut = Cut(self._options.part_frames)
        work = Begin(token, options, self._size_of, cut, self._options.clip_threads)
        return await self._on_file(data, token, work)

    async def decode_part(
        self,
        data: Any,
        token: str,
        sampling: Mapping[str, object] | None,
        size: tuple[int, int],
        part: Part,
    ) -> Clip:
        """The frames of one part of a long clip; the first three arguments as they began it."""
        options = self._sampling(sampling)
        work = DecodePart(token, options, size, part, self._options.part_threads)
        return await self._on_file(data, token, work)

    async def decode_sound_part(self, data: Any, token: str, part: SoundPart) -> Sound:
        """The sound of one part of a long clip."""
        return await self._on_file(data, token, DecodeSoundPart(token, part))

    async def _on_file(self, data: Any, token: str, work: Work) -> Any:
        view = memoryview(data).cast("B")
        self._limits.check_bytes(view.nbytes)
        held = await self._files.get(token, view)
        job = Job(held.size, self._limits, None, work=work)
        result = await self._pool.run(job, held, self._account(token, new=isinstance(work, Begin)))
        if isinstance(result, LongClip) or token in self._files:
            self._files.keep(token, held)
        return result

    def _account(self, token: str, new: bool) -> Account:
        """What the file's jobs have taken, since it was last begun."""
        account = self._accounts.pop(token, None)
        if account is None or new:
            account = Account()
        self._accounts[token] = account
        while len(self._accounts) > ACCOUNTS:
            self._accounts.popitem(last=False)
        return account

    def _sampling(self, wishes: Mapping[str, object] | None) -> SamplingOptions:
        return self._options.sampling().updated(wishes or {}, self._limits.sampled_frames)

    async def decode_sound(self, data: bytes) -> Sound:
        """The sound of an audio or video file, from its own first sample on. Raises as above."""
        self._limits.check_bytes(len(data))
        return await self._pool.run(Job(len(data), self._limits, options=None), data)

    def close(self) -> None:
        """Ends the worker processes at once."""
        self._files.clear()
        self._pool.close()

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self.close()
