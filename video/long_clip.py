"""What is known of a long clip before it is decoded, and the jobs that decode it. Loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from video.clip import Allocate, Clip, SizeOf, Sound
from video.sampling import SamplingOptions

if TYPE_CHECKING:
    from video.source import Source

SOUND_MARGIN = 1
"""Whole seconds of sound that a part brings along on either side, for the encoder's filters."""


@dataclass(frozen=True)
class Part:
    """Chosen frames first..first + count - 1 of a clip; count is even."""

    first: int
    count: int
    key: str
    """64 hex characters."""


@dataclass(frozen=True)
class SoundPart:
    """The sound from `start` to `start + seconds` on the picture's clock, whole seconds.

    What is handed on also holds SOUND_MARGIN seconds before (unless start is 0) and behind.
    """

    start: int
    seconds: int
    key: str
    goes_on: bool = False
    """Whether the track goes on behind the part: what is missing is then silence, not the end."""

    @property
    def lead(self) -> int:
        """Seconds that come before `start`."""
        return min(self.start, SOUND_MARGIN)


@dataclass(frozen=True)
class LongClip:
    """A clip before anything is decoded; `video.clip.Clip` says what the fields are."""

    times: np.ndarray
    """float64 [T], T even: of all chosen frames."""
    size: tuple[int, int]
    sampled_fps: float
    duration: float
    parts: tuple[Part, ...]
    sound: tuple[SoundPart, ...]


@dataclass(frozen=True)
class Cut:
    """How long clips are cut."""

    part_frames: int = 48
    """Frames of a part, at least; clips with no more are handed on whole."""
    sound_seconds: int = 60
    """Seconds of a part of the sound."""


@dataclass(frozen=True)
class Begin:
    """`video.parts.begin_clip` as a job for a worker process."""

    token: str
    options: SamplingOptions
    size_of: SizeOf | None
    cut: Cut
    threads: int

    def __call__(self, source: Source, allocate: Allocate) -> Clip | LongClip:
        from video.parts import begin_clip

        return begin_clip(source, allocate, **vars(self))


@dataclass(frozen=True)
class DecodePart:
    """`video.parts.decode_part` as a job."""

    token: str
    options: SamplingOptions
    size: tuple[int, int]
    part: Part
    threads: int

    def __call__(self, source: Source, allocate: Allocate) -> Clip:
        from video.parts import decode_part

        return decode_part(source, allocate, **vars(self))


@dataclass(frozen=True)
class DecodeSoundPart:
    """`video.parts.decode_sound_part` as a job."""

    token: str
    part: SoundPart

    def __call__(self, source: Source, allocate: Allocate) -> Sound:
        from video.parts import decode_sound_part

        return decode_sound_part(source, allocate, **vars(self))
