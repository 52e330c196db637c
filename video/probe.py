"""What a file holds, from its headers alone: nothing is decoded, every limit is checked."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av

from video.errors import MediaError
from video.limits import Limits
from video.source import Source

COVER = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails


@dataclass(frozen=True)
class VideoTrack:
    stream: int
    codec: str | None  # None: no decoder for it here
    width: int  # as stored: not yet turned upright
    height: int
    time_base: Fraction
    average_rate: float | None  # frames per second as the container claims
    nominal_rate: float | None  # frames per second as the coded stream claims


@dataclass(frozen=True)
class AudioTrack:
    stream: int
    codec: str | None  # None: no decoder for it here
    rate: int  # as declared; the decoder has the last word
    time_base: Fraction


@dataclass(frozen=True)
class Probe:
    format: str
    duration: float | None  # seconds, as declared
    video: VideoTrack | None
    audio: AudioTrack | None

    def need_video(self) -> VideoTrack:
        return need(self.video, "video")

    def need_audio(self) -> AudioTrack:
        return need(self.audio, "sound")


def probe(source: Source) -> Probe:
    """The tracks to use. Cover art and thumbnails are no video (case 49).

    Of several tracks the default one is taken, then the largest picture, then the first.
    Raises MediaError for an unreadable file or an exceeded limit; a missing track, or one that no
    decoder here reads, is an error only when it is needed.
    """
    with source.open() as container:
        limits = source.limits
        if len(container.streams) > limits.streams:
            raise MediaError(
                f"the file has {len(container.streams)} streams, more than the limit of "
                f"{limits.streams}"
            )
        duration = None if container.duration is None else container.duration / av.time_base
        if duration is not None:
            check_duration(duration, limits)
        if container.format.name == "gif":  # libav leaves the canvas to the decoder
            width, height = struct.unpack("<HH", source.data[6:10])
            check_picture(height, width, limits)
        return Probe(
            format=container.format.name,
            duration=duration,
            video=_video(container, limits),
            audio=_audio(container),
        )


def check_duration(seconds: float, limits: Limits) -> None:
    if seconds > limits.seconds:
        raise MediaError(
            f"the file lasts {seconds:.0f} s, more than the limit of {limits.seconds:g} s"
        )


def check_picture(height: int, width: int, limits: Limits) -> None:
    if height * width > limits.frame_pixels:
        raise MediaError(
            f"a frame has {width} x {height} pixels, more than the limit of {limits.frame_pixels}"
        )


def need(track: Any, kind: str) -> Any:
    """The track; MediaError when there is none, or no decoder for it."""
    if track is None:
        raise MediaError(f"the file has no {kind} track")
    if track.codec is None:
        raise MediaError(f"the codec of the {kind} track is not supported")
    return track


def _pick(streams: list[Any]) -> Any | None:
    """The default stream, else the first; those with a decoder before those without."""

    def rank(stream: Any) -> tuple[bool, bool]:
        return stream.codec_context is None, not stream.disposition & av.stream.Disposition.default

    return min(streams, key=rank, default=None)


def _codec(stream: Any) -> str | None:
    return stream.codec_context.codec.canonical_name if stream.codec_context else None


def _video(container: Any, limits: Limits) -> VideoTrack | None:
    pictures = [s for s in container.streams.video if not s.disposition & COVER]
    pictures.sort(key=lambda s: -(s.width * s.height) if s.codec_context else 0)
    stream = _pick(pictures)
    if stream is None:
        return None
    known = stream.codec_context is not None
    if known:
        check_picture(stream.height, stream.width, limits)
    return VideoTrack(
        stream=stream.index,
        codec=_codec(stream),
        width=stream.width if known else 0,
        height=stream.height if known else 0,
        time_base=stream.time_base,
        average_rate=_rate(stream.average_rate),
        nominal_rate=_rate(stream.guessed_rate) if known else None,
    )


def _rate(rate: Fraction | None) -> float | None:
    return float(rate) if rate else None


def _audio(container: Any) -> AudioTrack | None:
    stream = _pick(list(container.streams.audio))
    if stream is None:
        return None
    return AudioTrack(
        stream=stream.index,
        codec=_codec(stream),
        rate=stream.codec_context.sample_rate if stream.codec_context else 0,
        time_base=stream.time_base,
    )
