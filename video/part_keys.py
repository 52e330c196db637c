"""Keys that name what a part of a clip decodes to, from its coded bytes."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

import numpy as np

from video.head import Video
from video.index import MISSING, PacketIndex
from video.packet_hashes import PacketHashes
from video.packets import read_index
from video.plan import Run
from video.probe import AudioTrack

REACH = 2
"""Whole seconds of packets around a part of the sound that may bear on it."""


class PartKeys:
    """Keys of the parts of one opened clip whose frames are handed on in `size`.

    A key covers the decoder's configuration, the orientation, the size, the coded packets that the
    part needs and which of their frames it takes; never where in the file or when in the clip they
    are. Where packets say nothing about time it covers the whole file. `pictures` may be called
    from several threads.
    """

    def __init__(self, video: Video, size: tuple[int, int]) -> None:
        self._video = video
        source = video.source
        with source.open() as container:
            stream = container.streams[video.track.stream]
            self._head = _digest(_configuration(stream), video.orientation, size)
        self._packets = PacketHashes(source, video.track.stream, video.index)
        self._whole = ""
        self._sound: tuple[str, PacketIndex, PacketHashes] | None = None

    def pictures(self, runs: list[Run]) -> str:
        """The key of the frames that these runs give."""
        timeline = self._video.timeline
        if timeline.counted:
            return _digest("counted", self._head, self._file(), [run.frames for run in runs])
        fields: list[object] = ["pictures", self._head, timeline.time_base]
        for run in runs:
            origin = int(timeline.ticks[run.frames[0]])
            fields.append([int(tick) - origin for tick in timeline.ticks[list(run.frames)]])
            fields.append(int(self._video.index.pts[run.first_packet]) - origin)
            fields.append(self._packets.of(run.first_packet, run.last_packet))
        return _digest(*fields)

    def sound(self, track: AudioTrack, start: int, seconds: int) -> str:
        """The key of the sound from `start` to `start + seconds` on the picture's clock."""
        head, index, hashes = self._sound_index(track)
        if not len(index) or (index.pts == MISSING).any():
            return _digest("sound", head, self._file(), start, seconds)
        origin = (self._video.timeline.start + start) / track.time_base
        reach = Fraction(REACH) / track.time_base
        low, high = origin - reach, origin + Fraction(seconds) / track.time_base + reach
        near = np.flatnonzero((index.pts >= int(low)) & (index.pts <= int(high)))
        shift = int(index.pts[near[0]]) - origin if len(near) else Fraction(0)
        # The first packet of a track may be trimmed for the encoder's delay.
        first = bool(len(near)) and near[0] == 0
        heard = hashes.of(int(near[0]), int(near[-1])) if len(near) else b""
        return _digest("sound", head, seconds, shift, first, heard)

    def sound_end(self, track: AudioTrack) -> float | None:
        """When the track ends on the picture's clock, in seconds; None when packets do not say."""
        _, index, _ = self._sound_index(track)
        if not len(index) or (index.pts == MISSING).any():
            return None
        last = int((index.pts + index.duration).max())
        return float(last * track.time_base - self._video.timeline.start)

    def _sound_index(self, track: AudioTrack) -> tuple[str, PacketIndex, PacketHashes]:
        if self._sound is None:
            index = read_index(self._video.source, track.stream)
            with self._video.source.open() as container:
                head = _digest(_configuration(container.streams[track.stream]))
            self._sound = head, index, PacketHashes(self._video.source, track.stream, index)
        return self._sound

    def _file(self) -> str:
        self._whole = self._whole or hashlib.blake2b(self._video.source.data).hexdigest()
        return self._whole


def _configuration(stream: Any) -> list[object]:
    """What the decoder is told beside the packets."""
    codec = stream.codec_context
    names = ("width", "height", "pix_fmt", "color_range", "colorspace", "color_trc",
             "color_primaries", "sample_rate", "layout")  # fmt: skip
    described = [str(getattr(codec, name, None)) for name in names]
    return [codec.name, codec.extradata or b"", *described]


def _digest(*fields: object) -> str:
    """64 hex characters over the fields' representations, each with its length."""
    state = hashlib.blake2b(digest_size=32)
    for field in fields:
        text = repr(field).encode()
        state.update(len(text).to_bytes(8, "big") + text)
    return state.hexdigest()
