"""The sound track of any container: float32 at its native rate, on the right clock."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np

from video.clip import Allocate, Sound
from video.errors import MediaError
from video.limits import Limits
from video.packets import demux
from video.probe import AudioTrack, probe
from video.samples import ToFloat
from video.source import Source

GAP_SECONDS = 0.1
"""A timestamp this far ahead of the samples so far is a real gap, filled with silence. Smaller
differences are rounding of container clocks, and closing them would tear the wave."""


def decode_sound(source: Source, allocate: Allocate = np.zeros) -> Sound:
    """The sound of an audio file, or of a clip, from its own first sample on.

    Raises MediaError when there is no sound track or it does not decode; a track of zero samples
    gives [1, 0] (case 54).
    """
    track = probe(source).need_audio()
    return decode_track(source, track, None, allocate)


def decode_track(
    source: Source, track: AudioTrack, origin: Fraction | None, allocate: Allocate = np.zeros
) -> Sound:
    """Decodes one track.

    `origin`: seconds on the container's clock at which sample 0 of the result is heard (the first
    picture of a clip); the track is cut or padded with silence in front to fit. None: the track's
    own first sample. Encoder delay (mp3 and AAC priming) and end padding are removed where the
    container tells them; raw AAC (ADTS) and MPEG-TS do not. Packets that do not decode are skipped
    and what follows stays on the clock.
    """
    line = _Line(source.limits, track.time_base, origin)
    with source.open() as container:
        stream = container.streams[track.stream]
        tried = 0
        for frame in _frames(demux(container, stream, source), stream):
            tried += 1
            if frame is not None and frame.samples and frame.sample_rate > 0:
                line.add(frame)
    if line.rate == 0:
        if tried:
            raise MediaError("the sound track cannot be decoded")
        return Sound(allocate((1, 0), "float32"), track.rate or 1)
    return Sound(line.join(allocate), line.rate)


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
        self._end = 0  # samples so far; negative while the track is before the origin
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
