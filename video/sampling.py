"""Which frames of a clip the model sees: the family's rule (MiMo-V2 reference, section 5).

    n = total_frames / native_fps * fps
    n = min(max(n, min_frames up to even), max_frames down to even, total_frames), down to even
    indices = unique(int64(linspace(0, total_frames - 1, n)))
    sampled_fps = 1 / (times[1] - times[0])

Differences, all deliberate: times are true presentation times, not index / native_fps (case 40),
so they are right at variable frame rates; `num_frames`, which the family's sampler ignores, is
honoured (case 41), and so are explicit times; a clip of one frame counts as two equal frames at
0.0 s instead of being an error, so that a still GIF can be asked about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from video.errors import MediaError
from video.timeline import Timeline


@dataclass(frozen=True)
class SamplingOptions:
    """Defaults are those of MiMo-V2.5 (its `processor_config`, and the family's minimum of 8)."""

    fps: float | None = None
    """Frames per second to take, above 0; the default is 1.0. Not together with num_frames."""
    num_frames: int | None = None
    """Frames to take whatever the length, at least 1; rounded up to even."""
    min_frames: int = 8
    """At least 1; rounded up to even. Not applied to num_frames."""
    max_frames: int = 3600
    """At least 2; rounded down to even. Wins over min_frames."""
    times: tuple[float, ...] | None = None
    """Seconds from the first frame, ascending: the frames shown then, instead of any rule. Not
    together with fps or num_frames."""
    key_frames: bool = False
    """Instead of every chosen frame the key frame nearest to it in time, each once and with its own
    time: next to nothing is decoded besides, which is for very long clips. Files that have no key
    frames to rely on are sampled exactly."""

    DEFAULT_FPS = 1.0

    def __post_init__(self) -> None:
        if self.fps is not None:
            _check("fps", self.fps, (int, float), 0.001, 1000.0)
        if self.num_frames is not None:
            _check("num_frames", self.num_frames, (int,), 1, 1 << 20)
        _check("min_frames", self.min_frames, (int,), 1, 1 << 20)
        _check("max_frames", self.max_frames, (int,), 2, 1 << 20)
        if self.times is not None:
            _check_times(self.times)
        if not isinstance(self.key_frames, bool):
            raise MediaError("key_frames must be true or false")
        if sum(given is not None for given in (self.fps, self.num_frames, self.times)) > 1:
            raise MediaError("give one of fps, num_frames and times")

    def updated(self, options: Mapping[str, object], limit: int) -> SamplingOptions:
        """These options as a request changes them; null values and absent keys change nothing.

        A request that gives one of fps, num_frames and times drops defaults of the others. times
        may be any sequence. Raises MediaError
        naming the key for an unknown key, a wrong type, a value out of range, or a demand for more
        than `limit` frames.
        """
        known = [field.name for field in fields(self)]
        for name in options:
            if name not in known:
                raise MediaError(
                    f"unknown sampling option {name[:40]!r}; known: {', '.join(known)}"
                )
        given = {name: value for name, value in options.items() if value is not None}
        merged = {name: getattr(self, name) for name in known}
        merged["max_frames"] = min(self.max_frames, limit)
        if not given.keys().isdisjoint(("fps", "num_frames", "times")):
            merged.update(fps=None, num_frames=None, times=None)
        times = given.get("times")
        if isinstance(times, Sequence) and not isinstance(times, str):
            given["times"] = tuple(times)
            if len(times) > limit:
                raise MediaError(f"{len(times)} times are more than the limit of {limit}")
        merged.update(given)
        for name in ("num_frames", "min_frames", "max_frames"):
            value = given.get(name)
            if isinstance(value, int) and value > limit:
                raise MediaError(f"{name} = {value} is more than the limit of {limit}")
        return SamplingOptions(**merged)


@dataclass(frozen=True)
class Sampling:
    """Chosen frames with their times: one object, so that they cannot come apart (case 41)."""

    indices: np.ndarray
    """int64 [n], n even, ascending; equal only at the end, where the last frame of an odd number
    is repeated."""
    times: np.ndarray
    """float64 [n], seconds: true presentation times, frame 0 at 0.0."""
    sampled_fps: float


def sample(timeline: Timeline, options: SamplingOptions) -> Sampling:
    seconds = timeline.seconds
    if options.times is not None:
        indices = _shown_at(seconds, options)
    else:
        steady = timeline.steady_rate is not None
        indices = choose(len(timeline), timeline.rate, options, exact=steady)
    if options.key_frames and len(timeline.key_frames):
        indices = _nearest(seconds, timeline.key_frames, indices)
    times = seconds[indices]
    step = float(times[1] - times[0])
    return Sampling(indices, times, 1.0 / step if step > 0 else 1.0)


def choose(
    total: int, native_fps: float, options: SamplingOptions, exact: bool = True
) -> np.ndarray:
    """int64 [n] indices of `total` >= 1 frames. With `exact` false, a count within 0.5 % of a frame
    below an even number is rounded up to it: the clip's length was measured, and containers round
    its times."""
    if total == 1:
        return np.zeros(2, np.int64)
    most = min(options.max_frames // 2 * 2, total)
    if options.num_frames is not None:
        count = float(options.num_frames + options.num_frames % 2)
    else:
        count = total / native_fps * (options.fps or options.DEFAULT_FPS)
        count = max(count, options.min_frames + options.min_frames % 2)
    slack = 0.0 if exact else 0.005
    count = min(count + slack, most)
    return np.unique(np.linspace(0, total - 1, int(count) // 2 * 2).astype(np.int64))


def _shown_at(seconds: np.ndarray, options: SamplingOptions) -> np.ndarray:
    """The frames shown at the asked times: the last that began by then, but for rounding."""
    asked = np.array(options.times) + 1e-6
    shown = np.unique(np.maximum(np.searchsorted(seconds, asked, side="right") - 1, 0))
    return _paired(shown[: options.max_frames // 2 * 2])


def _nearest(seconds: np.ndarray, keys: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """For each of the chosen frames the key frame nearest to it, the earlier of two; each once."""
    behind = np.clip(np.searchsorted(keys, indices), 1, max(1, len(keys) - 1))
    before, after = keys[behind - 1], keys[np.minimum(behind, len(keys) - 1)]
    # Equally near but for rounding is equally near.
    closer = seconds[after] - seconds[indices] < seconds[indices] - seconds[before] - 1e-6
    return _paired(np.unique(np.where(closer, after, before)))


def _paired(indices: np.ndarray) -> np.ndarray:
    return np.append(indices, indices[-1:]) if len(indices) % 2 else indices


def _check_times(times: object) -> None:
    if not isinstance(times, tuple) or not times:
        raise MediaError("times must be a list of seconds")
    for time in times:
        _check("each of times", time, (int, float), 0.0, 1e7)
    if list(times) != sorted(times):
        raise MediaError("times must be in ascending order")


def _check(name: str, value: object, kinds: tuple[type, ...], low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise MediaError(f"{name} must be a {'whole number' if kinds == (int,) else 'number'}")
    if not (isinstance(value, (int, float)) and low <= value <= high):
        raise MediaError(f"{name} must be between {low:g} and {high:g}")
