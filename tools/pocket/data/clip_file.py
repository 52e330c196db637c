"""Writes a generated clip or sound to a media file with PyAV, as a client would send it."""

from __future__ import annotations

import io
import wave
from fractions import Fraction

import av
import numpy as np

from tools.pocket.data.sample import Clip, Sound

_CHUNK = 1024


def encode_clip(clip: Clip, codec: str = "libx264", crf: int = 20) -> bytes:
    """An MP4 file (H.264, 4:2:0; AAC when there is sound). Frame sides must be even."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        first = clip.draw(0.0)
        video = container.add_stream(codec, rate=clip.fps)
        video.height, video.width = first.shape[:2]
        video.pix_fmt = "yuv420p"
        video.options = {"crf": str(crf), "preset": "veryfast"}
        audio = None
        if clip.sound is not None:
            audio = container.add_stream("aac", rate=clip.sound.rate, layout="mono")
        for number in range(clip.count):
            frame = av.VideoFrame.from_ndarray(clip.draw(number / clip.fps), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, clip.fps)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if audio is not None and clip.sound is not None:
            mux_sound(container, audio, clip.sound)
    return buffer.getvalue()


def mux_sound(container, stream, sound: Sound) -> None:  # type: ignore[no-untyped-def]
    """Encode a sound into an open container's stream, to its end."""
    for start in range(0, len(sound.samples), _CHUNK):
        part = sound.samples[None, start : start + _CHUNK]
        frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
        frame.rate, frame.pts = sound.rate, start
        frame.time_base = Fraction(1, sound.rate)
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def encode_sound(sound: Sound) -> bytes:
    """A 16-bit mono WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sound.rate)
        file.writeframes((np.clip(sound.samples, -1, 1) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()
