"""Options of the replica, checked at construction; the names are those of the settings file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from video.limits import Limits
from video.sampling import SamplingOptions

MAX_WORKERS = 4


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class DecoderOptions:
    """What a replica may be told. Values out of range raise ValueError."""

    workers: int | None = None
    """Processes, each decoding a clip, or a part of one, at a time; by default one for each core,
    and no more than MAX_WORKERS."""
    max_waiting: int = 64
    """Files that may queue in the replica beyond those."""
    threads: int | None = None
    """Threads on which one clip is decoded, a chunk each; by default one for each core."""
    part_frames: int = 48
    """Frames of a part of a long clip; clips with no more are handed on whole."""
    timeout_s: float = 300.0
    """Seconds that one file may take in all its parts, waiting not counted; what parts take side
    by side counts once."""
    max_file_bytes: int = 1 << 30
    max_duration_s: float = 7200.0
    """Of the picture and of the sound."""
    max_frame_pixels: int = 40_000_000
    """Pixels of a frame as sent."""
    memory_bytes: int = 2 << 30
    """Decoded frames of one clip, after scaling; and the same again for its sound."""
    request_max_frames: int = 3600
    """Most frames that a request may ask for."""
    fps: float | None = None
    """Sampling where a request says nothing; see `SamplingOptions`."""
    min_frames: int | None = None
    max_frames: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("max_waiting", 0), ("threads", 1), ("part_frames", 2)):
            value = getattr(self, name)
            if value is None and name in ("workers", "threads"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value}")
        self.limits()
        self.sampling()

    @classmethod
    def of(cls, given: Mapping[str, Any] | DecoderOptions | None) -> Self:
        """Options from a settings section; what concerns the deployment alone is left aside."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping | None):
            raise TypeError(f"expected {cls.__name__} or a mapping, got {type(given).__name__}")
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in (given or {}).items() if name in names})

    @property
    def processes(self) -> int:
        return self.workers or min(usable_cores(), MAX_WORKERS)

    @property
    def clip_threads(self) -> int:
        """Threads for a clip that is decoded at once."""
        return self.threads or usable_cores()

    @property
    def part_threads(self) -> int:
        """Threads for a part of a long clip. Parts are decoded side by side: all threads together
        are twice the cores, so that the last parts of a clip leave none idle."""
        return min(self.clip_threads, 2 * math.ceil(self.clip_threads / self.processes))

    def limits(self) -> Limits:
        return Limits(
            bytes=self.max_file_bytes,
            seconds=self.max_duration_s,
            frame_pixels=self.max_frame_pixels,
            sampled_frames=self.request_max_frames,
            output_pixels=self.memory_bytes // 3,
            sound_seconds=self.max_duration_s,
            sound_bytes=self.memory_bytes,
            decode_seconds=self.timeout_s,
        )

    def sampling(self) -> SamplingOptions:
        given = {"fps": self.fps, "min_frames": self.min_frames, "max_frames": self.max_frames}
        return SamplingOptions().updated(given, limit=1 << 20)
