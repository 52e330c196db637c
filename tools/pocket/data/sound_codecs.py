"""What lossy codecs leave of a sound."""

from __future__ import annotations

import io

import av
import numpy as np
import torch

from encoders.audio.resample import resample
from tools.pocket.data.clip_file import mux_sound
from tools.pocket.data.sample import Sound
from video.sound import decode_sound
from video.source import Source

CODECS = {"libmp3lame": "mp3", "aac": "mp4", "libopus": "ogg"}


def coded(sound: Sound, codec: str, bit_rate: int) -> np.ndarray:
    """float32 [n], as many samples as before, after ``codec`` at ``bit_rate`` bits a second, read
    as the server reads it."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=CODECS[codec]) as container:
        stream = container.add_stream(codec, rate=sound.rate, layout="mono")
        stream.bit_rate = bit_rate
        mux_sound(container, stream, sound)
    found = decode_sound(Source(buffer.getvalue()))
    heard = resample(torch.from_numpy(found.samples[0]), found.rate, sound.rate).numpy()
    missing = max(len(sound.samples) - len(heard), 0)
    return np.pad(heard, (0, missing))[: len(sound.samples)]
