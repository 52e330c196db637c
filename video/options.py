"""Options of the replica, checked at construction; the names are those of the settings file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from video.limits import Limits
from video.sampling import SamplingOptions


@dataclass(frozen=True)
class DecoderOptions:
    """What a replica may be told. Values out of range raise ValueError."""

    workers: int = 1
    """Processes, each decoding one file at a time."""
    max_waiting: int = 64
    """Files that may queue in the replica beyond those."""
    chunks: int = 1
    """Chunks a clip is cut into, decoded on as many threads of its worker."""
    part_frames: int = 64
    """Frames of a part of a long clip; clips with no more are handed on whole."""
    timeout_s: float = 300.0
    """Seconds that one file may take, waiting not counted."""
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
        for name, least in (("workers", 1), ("max_waiting", 0), ("chunks", 1), ("part_frames", 2)):
            value = getattr(self, name)
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
