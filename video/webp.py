"""Animated WebP as a clip. libav reads WebP stills only, so Pillow decodes these."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from PIL import Image

from video.budget import Budget
from video.clip import Allocate, Clip, SizeOf, assemble, frame_size
from video.errors import MediaError
from video.probe import check_duration, check_picture
from video.sampling import SamplingOptions, sample
from video.source import Source
from video.timeline import from_durations

TICK = Fraction(1, 1000)
DEFAULT_DURATION = 100
"""Ticks for a frame that claims to last no time (browsers and libav's GIF reader agree on it)."""


def is_webp(data: memoryview) -> bool:
    return bytes(data[:4]) == b"RIFF" and bytes(data[8:12]) == b"WEBP"


def decode_webp(
    source: Source, options: SamplingOptions, size_of: SizeOf | None, allocate: Allocate
) -> Clip:
    """As `decode_clip`. A still WebP is a clip of one frame. Transparency is dropped, as Pillow's
    conversion to RGB does."""
    canvas, durations, data = _parse(source.data)
    check_picture(*canvas, source.limits)
    timeline = from_durations(durations, TICK)
    check_duration(timeline.duration, source.limits)
    sampling = sample(timeline, options)
    wanted = np.unique(sampling.indices)
    size = frame_size(size_of, len(sampling.indices), *canvas, source.limits)
    frames = allocate((len(sampling.indices), *size, 3), "uint8")
    kept = np.zeros(len(wanted), bool)
    for slot, picture in _pictures(data, source.budget, wanted, size):
        frames[slot] = picture
        kept[slot] = True
    return assemble(frames, kept, sampling, timeline.duration)


def _pictures(
    data: bytes, budget: Budget, wanted: np.ndarray, size: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray]]:
    """(slot, uint8 [height, width, 3]); ends early at a frame that does not decode, since every
    later one is drawn over it."""
    try:
        with Image.open(io.BytesIO(data), formats=["WEBP"]) as image:
            for slot, index in enumerate(wanted.tolist()):
                budget.check()
                image.seek(index)
                picture = image.convert("RGB")
                if picture.size != (size[1], size[0]):
                    picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
                yield slot, np.asarray(picture)
    except MediaError:  # the budget's
        raise
    except (OSError, EOFError, SyntaxError, ValueError):
        return


def _parse(data: memoryview) -> tuple[tuple[int, int], list[int], bytes]:
    """((canvas height, width), duration of each frame in ms, the file without a torn end).

    Read from the RIFF chunks alone. libwebp refuses a file that ends within a chunk, so what is
    whole is put under a size of its own.
    """
    canvas: tuple[int, int] | None = None
    durations: list[int] = []
    at = 12
    while at + 8 <= len(data):
        name, size = bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8], "little")
        if at + 8 + size > len(data):
            break
        body = bytes(data[at + 8 : at + 8 + min(size, 16)])
        if name == b"VP8X" and len(body) >= 10:
            canvas = (_u24(body, 7) + 1, _u24(body, 4) + 1)
        elif name == b"VP8L" and len(body) >= 5 and canvas is None:
            bits = int.from_bytes(body[1:5], "little")
            canvas = ((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
        elif name == b"VP8 " and len(body) >= 10 and canvas is None:
            width, height = struct.unpack("<HH", body[6:10])
            canvas = (height & 0x3FFF, width & 0x3FFF)
        elif name == b"ANMF" and len(body) >= 16:
            durations.append(_u24(body, 12) or DEFAULT_DURATION)
        at += 8 + size + size % 2
    if canvas is None or 0 in canvas:
        raise MediaError("the WebP file is damaged")
    whole = bytes(data[8:at])
    return (
        canvas,
        durations or [DEFAULT_DURATION],
        b"RIFF" + len(whole).to_bytes(4, "little") + whole,
    )


def _u24(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 3], "little")
