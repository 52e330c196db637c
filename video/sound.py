"""The sound track of any container: float32 at its native rate, on the right clock."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from typing import Any

import av
import numpy as np

from video.clip import Allocate, Sound
from video.errors import MediaError
from video.limits import Limits
from video.packets import demux, seeks
from video.probe import AudioTrack, probe
from video.samples import ToFloat
from video.source import Source

GAP_SECONDS = 0.1
"""A timestamp this far ahead of the samples so far is a real gap, filled with silence. Smaller
differences are rounding of container clocks, and closing them would tear the wave."""
PREROLL_SECONDS = 1
"""Sound decoded ahead of a part of a track: frames overlap, and mp3 frames borrow from earlier
ones."""


def decode_sound(source: Source, allocate: Allocate = np.zeros) -> Sound:
    """The sound of an audio file, or of a clip, from its own first sample on.

    Raises MediaError when there is no sound track or it does not decode; a track of zero samples
    gives [1, 0] (case 54).
    """
    track = probe(source).need_audio()
    return decode_track(source, track, None, allocate)


def decode_track(
    source: Source,
    track: AudioTrack,
    origin: Fraction | None,
    allocate: Allocate = np.zeros,
    seconds: int | None = None,
) -> Sound:
    """Decodes one track.

    `origin`: seconds on the container's clock at which sample 0 of the result is heard (the first
    picture of a clip); the track is cut or padded with silence in front to fit. None: the track's
    own first sample. `seconds`: no more than these are wanted, from an origin; what comes before is
    then skipped without decoding but for PREROLL_SECONDS. Encoder delay (mp3 and AAC priming) and
    end padding are removed where the container tells them; raw AAC (ADTS) and MPEG-TS do not.
    Packets that do not decode are skipped and what follows stays on the clock.
    """
    line = _Line(source.limits, track.time_base, origin)
    begin = None if origin is None or seconds is None else (origin - PREROLL_SECONDS)
    tried = 0
    with _packets(source, track, begin) as (stream, packets):
        for frame in _frames(packets, stream):
            tried += 1
            if frame is not None and frame.samples and frame.sample_rate > 0:
                line.add(frame)
                if seconds is not None and line.end >= seconds * line.rate:
                    break
    if line.rate == 0:
        if tried and seconds is None:
            raise MediaError("the sound track cannot be decoded")
        return Sound(allocate((1, 0), "float32"), track.rate or 1)
    samples = line.join(allocate)
    return Sound(samples if seconds is None else samples[:, : seconds * line.rate], line.rate)


@contextmanager
def _packets(
    source: Source, track: AudioTrack, begin: Fraction | None
) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The stream, opened anew, and its packets from `begin` on (seconds; None: all)."""
    tick = None if begin is None else math.floor(begin / track.time_base)
    with source.open() as container:
        stream = container.streams[track.stream]
        packets = None
        if tick is not None and tick > 0 and seeks(container):
            packets = _sought(container, stream, source, tick)
        if packets is not None:
            yield stream, packets
            return
    with source.open() as container:
        stream = container.streams[track.stream]
        packets = demux(container, stream, source)
        yield stream, packets if tick is None else _after(packets, tick)


def _sought(container: Any, stream: Any, source: Source, tick: int) -> Iterator[Any] | None:
    """The packets from `tick` or a little before; None when the seek did not lead there."""
    try:
        container.seek(tick, stream=stream, backward=True)
    except av.error.FFmpegError:
        return None
    packets = demux(container, stream, source)
    first = next(packets, None)
    if first is None or first.pts is None or first.pts > tick:
        return None
    return _after(chain([first], packets), tick)


def _after(packets: Iterator[Any], tick: int) -> Iterator[Any]:
    return (packet for packet in packets if packet.pts is None or packet.pts >= tick)


def _frames(packets: Iterator[Any], stream: Any) -> Iterator[Any | None]:
    """Decoded frames; None for a packet that fails."""
    for packet in packets:
        try:
            frames = packet.decode()
        except av.error.FFmpegError:
            frames = [None]
        yield from frames
    try:
        yield from stream.codec_context.decode(None)
    except av.error.FFmpegError:
        yield None


class _Line:
    """Samples in a row, placed by their timestamps."""

    def __init__(self, limits: Limits, time_base: Fraction, origin: Fraction | None) -> None:
        self._limits = limits
        self._time_base = time_base
        self._origin = origin
        self._blocks: list[np.ndarray] = []
        self._convert: ToFloat | None = None
        self._end = 0
        self.rate = 0
        self.channels = 0

    def add(self, frame: Any) -> None:
        if self._convert is None:
            self._convert = ToFloat(frame)
            self.rate, self.channels = frame.sample_rate, len(frame.layout.channels)
            self._place_first(frame)
        else:
            self._fill_gap(frame)
        for block in self._convert(frame):
            self._append(block)

    @property
    def end(self) -> int:
        """Samples so far; negative while the track is before the origin."""
        return self._end

    def join(self, allocate: Allocate) -> np.ndarray:
        for block in self._convert.flush() if self._convert else []:
            self._append(block)
        samples = allocate((self.channels, max(self._end, 0)), "float32")
        at = 0
        for block in self._blocks:
            samples[:, at : at + block.shape[1]] = block
            at += block.shape[1]
        return samples

    def _place_first(self, frame: Any) -> None:
        if self._origin is None:
            self._origin = Fraction(0) if frame.pts is None else frame.pts * self._time_base
        elif frame.pts is not None:
            self._end = min(0, self._position(frame))
            self._silence(self._position(frame))

    def _fill_gap(self, frame: Any) -> None:
        if frame.pts is not None:
            gap = self._position(frame) - self._end
            if gap > GAP_SECONDS * self.rate:
                self._silence(gap)

    def _position(self, frame: Any) -> int:
        assert self._origin is not None
        return round((frame.pts * self._time_base - self._origin) * self.rate)

    def _silence(self, count: int) -> None:
        if count > 0:
            self._reserve(count)
            self._append(np.zeros((self.channels, count), np.float32))

    def _append(self, block: np.ndarray) -> None:
        self._reserve(block.shape[1])
        visible = block[:, max(0, -self._end) :]
        self._end += block.shape[1]
        if visible.shape[1] and self._end > 0:
            self._blocks.append(visible)

    def _reserve(self, count: int) -> None:
        """Refuses before memory is taken."""
        total = self._end + count
        if total > self._limits.sound_seconds * self.rate:
            raise MediaError(
                f"the sound lasts longer than the limit of {self._limits.sound_seconds:g} s"
            )
        if total * self.channels * 4 > self._limits.sound_bytes:
            raise MediaError(
                f"the sound takes more than the limit of {self._limits.sound_bytes} bytes"
            )
