"""What this room hands on, and how it is put together from the frames that decoded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from video.errors import MediaError
from video.limits import Limits
from video.sampling import Sampling

SizeOf = Callable[[int, int, int], tuple[int, int]]
"""(number of frames, height, width), upright -> (height, width) of the frames to hand on."""

Allocate = Callable[[tuple[int, ...], str], np.ndarray]
"""(shape, dtype name) -> zeroed array. Lets a worker process put arrays into shared memory."""


@dataclass(frozen=True)
class Sound:
    samples: np.ndarray
    """float32 [channels, n], nominally in -1..1 (float files may exceed it), always finite."""
    rate: int
    """Samples per second, as stored in the file."""


@dataclass(frozen=True)
class Clip:
    frames: np.ndarray
    """uint8 [T, H, W, 3], RGB, upright; T even and at least 2."""
    times: np.ndarray
    """float64 [T], seconds: true presentation times; the first presented frame of the file, which
    need not be among these, is at 0.0."""
    sampled_fps: float
    """1 / (second chosen time - first), also when damage then took one of the two."""
    duration: float
    """Seconds from the start of the first presented frame to the end of the last."""
    sound: Sound | None
    """On the picture's clock: sample 0 sounds at time 0.0. None when the file has no sound."""
    lost: int = 0
    """Chosen frames that could not be decoded and are missing here."""


def frame_size(
    size_of: SizeOf | None, frames: int, height: int, width: int, limits: Limits
) -> tuple[int, int]:
    """(height, width) of the frames to hand on.

    Without `size_of` the native size, shrunk evenly when all frames together would exceed the
    limit. Raises MediaError when those of `size_of` exceed it, or when it refuses the size itself
    (a ValueError with a `reason`, as every room's MediaError has).
    """
    if size_of is None:
        shrink = max(1.0, math.sqrt(frames * height * width / limits.output_pixels))
        return max(1, int(height / shrink)), max(1, int(width / shrink))
    try:
        size = size_of(frames, height, width)
    except ValueError as error:
        if hasattr(error, "reason"):
            raise MediaError(error.reason) from error
        raise
    if frames * size[0] * size[1] > limits.output_pixels:
        raise MediaError(
            f"{frames} frames of {size[1]} x {size[0]} pixels exceed the limit of "
            f"{limits.output_pixels} pixels in all; ask for fewer"
        )
    return size


def assemble(frames: np.ndarray, kept: np.ndarray, sampling: Sampling, duration: float) -> Clip:
    """The clip of the decoded frames. `frames` [T, H, W, 3] holds distinct frames in the first
    len(kept) <= T places (in place, since it may be most of the memory there is)."""
    places = np.flatnonzero(kept)
    if len(places) == 0:
        raise MediaError("no frame of the video can be decoded")
    times = sampling.times[places]
    for to, place in enumerate(places):
        if to != place:
            frames[to] = frames[place]
    count = len(places)
    if count % 2:
        frames[count] = frames[count - 1]
        times = np.append(times, times[-1])
        count += 1
    lost = len(kept) - len(places)
    return Clip(frames[:count], times, sampling.sampled_fps, duration, None, lost)
