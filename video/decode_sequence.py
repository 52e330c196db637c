"""Pictures sent as one clip: a list of JPEG, PNG or WebP files in place of a video file.

Every picture is taken (a request that wants fewer says num_frames or max_frames); picture i is
shown at i / fps. All are scaled like the first. One that cannot be decoded is named, not left out.
"""

from __future__ import annotations

import io
from dataclasses import replace
from fractions import Fraction

import numpy as np
from PIL import Image, ImageOps

from video.clip import Allocate, Clip, SizeOf, assemble, frame_size
from video.errors import MediaError
from video.sampling import Sampling, SamplingOptions, choose
from video.sequence import unpack_sequence
from video.source import Source

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def decode_sequence(
    source: Source, options: SamplingOptions, size_of: SizeOf | None, allocate: Allocate = np.zeros
) -> Clip:
    """As `decode_clip`; `options.fps` is the sequence's own rate. Raises MediaError."""
    pictures = unpack_sequence(source.data, source.limits.sampled_frames)
    rate = Fraction(options.fps or options.DEFAULT_FPS).limit_denominator(1001)
    indices = _chosen(len(pictures), options)
    times = indices * float(1 / rate)
    sampling = Sampling(indices, times, float(1 / (times[1] - times[0])) if len(times) > 1 else 1.0)
    frames: np.ndarray | None = None
    height = width = 0
    for slot, index in enumerate(indices.tolist()):
        source.budget.check()
        image = _open(pictures[index], index, source.limits.frame_pixels)
        if frames is None:
            count = len(indices) + len(indices) % 2
            height, width = frame_size(size_of, count, image.height, image.width, source.limits)
            frames = allocate((count, height, width, 3), "uint8")
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        frames[slot] = np.asarray(image)
    assert frames is not None
    duration = len(pictures) / float(rate)
    return assemble(frames, np.ones(len(indices), bool), sampling, duration)


def _chosen(total: int, options: SamplingOptions) -> np.ndarray:
    most = options.max_frames // 2 * 2
    if options.num_frames is None and total <= most:
        return np.arange(total)
    wanted = replace(options, fps=None, num_frames=options.num_frames or most)
    return np.unique(choose(total, 1.0, wanted))


def _open(data: memoryview, number: int, max_pixels: int) -> Image.Image:
    """The picture in RGB, upright, transparency on white."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > max_pixels:
            raise MediaError(
                f"picture {number} of the sequence has {image.width} x {image.height} pixels, more "
                f"than the limit of {max_pixels}"
            )
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            white = Image.new("RGBA", upright.size, (255, 255, 255, 255))
            upright = Image.alpha_composite(white, upright.convert("RGBA"))
        return upright.convert("RGB")
    except MediaError:
        raise
    except Exception as error:  # damage raises nearly anything out of the format readers
        raise MediaError(f"picture {number} of the sequence cannot be decoded") from error
