"""From a probed file to a video whose frames can be asked for: index, clock, orientation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from video.decoder import RangeDecoder
from video.errors import MediaError
from video.index import PacketIndex
from video.orientation import Orientation, from_matrix
from video.packets import read_index
from video.probe import Probe, VideoTrack, check_duration, check_picture
from video.source import Source
from video.timeline import Timeline, from_count, from_timestamps

FALLBACK_RATE = 25.0
"""Frames per second of a stream that says nothing sensible about time (libav's own default)."""


@dataclass(frozen=True)
class Video:
    source: Source
    track: VideoTrack
    index: PacketIndex
    timeline: Timeline
    orientation: Orientation
    height: int  # upright
    width: int  # upright
    progressive: bool
    """By the first frame. Two fields may be two packets, of which one says nothing of the other."""

    @property
    def pixels(self) -> int:
        return self.height * self.width

    def decoder(self) -> RangeDecoder:
        return RangeDecoder(self.source, self.track.stream, self.index, self.timeline.reorder)


def open_video(source: Source, probe: Probe) -> Video:
    """Reads the packet index and decodes one frame. Raises MediaError.

    A stream without usable timestamps is decoded once here just to count its frames: packets and
    frames need not match in such streams, so nothing less would be right.
    """
    track = probe.need_video()
    index = read_index(source, track.stream)
    if len(index) == 0:
        raise MediaError("the video track holds no frames")
    timeline = from_timestamps(index, track.codec, track.time_base, track.average_rate)
    if timeline is None:
        timeline = _count(source, track, index)
    check_duration(timeline.duration, source.limits)
    with RangeDecoder(source, track.stream, index, timeline.reorder) as decoder:
        frame = _first_frame(decoder, timeline)
        if track.codec == "h264" and not timeline.counted:
            timeline = _settle(decoder, timeline)
    check_picture(frame.height, frame.width, source.limits)
    orientation = _orientation(frame)
    height, width = orientation.size(frame.height, frame.width)
    progressive = not frame.interlaced_frame
    return Video(source, track, index, timeline, orientation, height, width, progressive)


def _count(source: Source, track: VideoTrack, index: PacketIndex) -> Timeline:
    with RangeDecoder(source, track.stream, index, reorder=0) as decoder:
        frames = sum(1 for _ in decoder.frames(0, len(index) - 1))
    if frames == 0:
        raise MediaError("no frame of the video can be decoded")
    rate = track.nominal_rate or 0.0
    if not 0.1 <= rate <= 1000:
        rate = FALLBACK_RATE
    return from_count(frames, index, track.time_base, rate)


def _first_frame(decoder: RangeDecoder, timeline: Timeline) -> Any:
    """The first frame that decodes; tried from each key packet in turn when the head is broken."""
    starts, firsts = np.unique(timeline.first_packet, return_index=True)
    ends = np.append(firsts[1:], len(timeline)) - 1
    for start, end in zip(starts, ends, strict=True):
        frame = next(decoder.frames(int(start), int(timeline.last_packet[end])), None)
        if frame is not None:
            return frame
    raise MediaError("no frame of the video can be decoded")


def _orientation(frame: Any) -> Orientation:
    for data in frame.side_data:
        if data.type.name == "DISPLAYMATRIX":
            return from_matrix(np.frombuffer(data, np.int32).tolist())
    return Orientation()


def _settle(decoder: RangeDecoder, timeline: Timeline) -> Timeline:
    """Starts one key packet earlier where key packets are gradual.

    H.264 streams without full pictures (periodic intra refresh) mark places from which the picture
    *becomes* right by the next mark. Such a place is known by its own packet giving no picture.
    """
    keys = np.unique(timeline.first_packet)
    if len(keys) < 2 or any(True for _ in _alone(decoder, int(keys[1]))):
        return timeline
    place = np.searchsorted(keys, timeline.first_packet)
    return replace(timeline, first_packet=keys[np.maximum(place - 1, 0)])


def _alone(decoder: RangeDecoder, number: int) -> Iterator[Any]:
    return decoder.frames(number, number)
