"""When each frame is shown, and where decoding must start to reach it.

Frame i is the i-th frame *presented*: edit lists, B-frames, a non-zero start and variable frame
rates (cases 40, 47) all end here. Times are true presentation times relative to frame 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from video.index import MISSING, PacketIndex

KEYED_CODECS = frozenset(
    [
        "h264",
        "hevc",
        "vvc",
        "vp8",
        "vp9",
        "av1",
        "mpeg4",
        "mpeg2video",
        "mpeg1video",
        "mjpeg",
        "prores",
        "dnxhd",
        "theora",
        "ffv1",
    ]
)
"""Codecs whose key flags are trusted as places to start decoding. All others (GIF composes every
frame on the one before) are decoded from their first packet."""

MAX_MISSING = 0.1
"""Share of packets without a timestamp that damage may explain; above it the container is taken
to give none, and frames are counted instead."""


@dataclass(frozen=True)
class Timeline:
    ticks: np.ndarray
    """int64 [n], strictly increasing: presentation time of each frame in units of time_base."""
    time_base: Fraction
    end: int
    """Tick at which the last frame stops being shown."""
    steady_rate: float | None
    """Frames per second when every frame is where this constant rate puts it, else None."""
    counted: bool
    """Whether decoded frames are told apart by their place in the decoder's output instead of by
    their timestamp (raw streams, B-frames in AVI, clocks that jump)."""
    first_packet: np.ndarray
    """int32 [n]: number of the key packet from which frame i decodes exactly."""
    last_packet: np.ndarray
    """int32 [n]: number of the last packet needed for frame i and all before it."""
    reorder: int
    """Frames a decoder must hold back to put its output in order."""
    key_frames: np.ndarray
    """int64, ascending: frames that decode from a key packet of their own; empty where frames are
    counted or key flags are not trusted."""

    def __len__(self) -> int:
        return len(self.ticks)

    @property
    def seconds(self) -> np.ndarray:
        """float64 [n]: presentation times relative to frame 0, which is at 0.0."""
        return (self.ticks - self.ticks[0]) * float(self.time_base)

    @property
    def start(self) -> Fraction:
        """Seconds at which frame 0 is shown on the container's own clock."""
        return int(self.ticks[0]) * self.time_base

    @property
    def duration(self) -> float:
        """Seconds from the start of the first frame to the end of the last."""
        return float((self.end - int(self.ticks[0])) * self.time_base)

    @property
    def rate(self) -> float:
        """Mean frames per second; exactly the nominal rate when the rate is steady."""
        return self.steady_rate or len(self) / self.duration


def from_timestamps(
    index: PacketIndex, codec: str | None, time_base: Fraction, average_rate: float | None
) -> Timeline | None:
    """The timeline that the packets' own timestamps give; None when they cannot be relied on."""
    known = index.pts != MISSING
    if not known.any() or (~known).mean() > MAX_MISSING:
        return None
    keys = _keys(index, codec, known)
    if len(keys) == 0 or (np.diff(index.pts[keys]) <= 0).any():
        return None
    shown = known & ~index.discard & (np.arange(len(index)) >= keys[0])
    shown &= index.pts >= index.pts[keys[0]]
    numbers = np.flatnonzero(shown)
    if len(numbers) == 0:
        return None
    order = numbers[np.argsort(index.pts[numbers], kind="stable")]
    ticks, firsts = np.unique(index.pts[order], return_index=True)
    last = np.maximum.accumulate(order)[np.append(firsts[1:], len(order)) - 1]
    # The last key packet that is neither shown after the frame (the frames shown before an open
    # GOP's key packet need the GOP before) nor decoded after it.
    by_time = np.searchsorted(index.pts[keys], ticks, side="right")
    by_place = np.searchsorted(keys, order[firsts], side="right")
    first = keys[np.minimum(by_time, by_place) - 1]
    end = int(ticks[-1]) + _last_duration(ticks, int(index.duration[order[-1]]))
    return Timeline(
        ticks=ticks,
        time_base=time_base,
        end=end,
        steady_rate=_steady_rate(ticks, time_base, average_rate),
        counted=False,
        first_packet=first.astype(np.int32),
        last_packet=last.astype(np.int32),
        reorder=_reorder(index.pts[known]),
        key_frames=_key_frames(ticks, index.pts[keys], codec),
    )


def from_count(frames: int, index: PacketIndex, time_base: Fraction, rate: float) -> Timeline:
    """The timeline of `frames` >= 1 frames that came out of the decoder without usable timestamps.

    When there is one decode time per frame, these in ascending order are the times of presentation
    but for a constant (AVI: dropped frames leave gaps). Else frame i is at i / rate; after damage
    in such files later times are early by what was lost. Everything decodes from the first packet.
    """
    ticks = np.sort(index.dts)
    if len(ticks) != frames or ticks[0] == MISSING or (np.diff(ticks) <= 0).any():
        time_base = 1 / Fraction(rate).limit_denominator(1001)
        ticks = np.arange(frames, dtype=np.int64)
    return Timeline(
        ticks=ticks,
        time_base=time_base,
        end=int(ticks[-1]) + _last_duration(ticks, 0),
        steady_rate=_steady_rate(ticks, time_base, float(rate)),
        counted=True,
        first_packet=np.zeros(frames, np.int32),
        last_packet=np.full(frames, len(index) - 1, np.int32),
        reorder=0,
        key_frames=np.zeros(0, np.int64),
    )


def from_durations(durations: list[int], time_base: Fraction) -> Timeline:
    """The timeline of pictures shown one after the other, each for so many ticks (above 0)."""
    ends = np.cumsum(np.array(durations, np.int64))
    ticks = ends - durations
    mean = len(ticks) / float(int(ends[-1]) * time_base)
    none = np.zeros(len(ticks), np.int32)
    return Timeline(
        ticks=ticks,
        time_base=time_base,
        end=int(ends[-1]),
        steady_rate=_steady_rate(ticks, time_base, mean),
        counted=True,
        first_packet=none,
        last_packet=none,
        reorder=0,
        key_frames=none[:0],
    )


def _keys(index: PacketIndex, codec: str | None, known: np.ndarray) -> np.ndarray:
    keys = np.flatnonzero(index.key & known)
    if codec not in KEYED_CODECS or len(keys) == 0:
        keys = np.flatnonzero(known)[:1]
    return keys


def _key_frames(ticks: np.ndarray, keys: np.ndarray, codec: str | None) -> np.ndarray:
    if codec not in KEYED_CODECS:
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.isin(ticks, keys))


def _last_duration(ticks: np.ndarray, declared: int) -> int:
    if declared > 0:
        return declared
    return max(1, int(np.median(np.diff(ticks)))) if len(ticks) > 1 else 1


def _steady_rate(ticks: np.ndarray, time_base: Fraction, claimed: float | None) -> float | None:
    """The claimed rate when it puts every frame within one tick of its true time.

    One tick and no more: containers round (WebM to whole milliseconds), and nothing else may
    differ. A slack of 1e-6 of the length allows for rates given as rounded decimals.
    """
    if not claimed or len(ticks) < 2:
        return None
    seconds = (ticks - ticks[0]) * float(time_base)
    error = np.abs(seconds - np.arange(len(ticks)) / claimed).max()
    return claimed if error <= float(time_base) + 1e-6 * seconds[-1] else None


def _reorder(pts: np.ndarray) -> int:
    """Most frames that are decoded before, but shown after, any one frame."""
    place = np.empty(len(pts), np.int64)
    place[np.argsort(pts, kind="stable")] = np.arange(len(pts))
    return int((np.arange(len(pts)) - place).max(initial=0))
