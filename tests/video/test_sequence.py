"""Pictures sent as one clip."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from tests.video.clips import draw, numbers
from video.decode import decode_clip
from video.errors import MediaError
from video.limits import Limits
from video.sampling import SamplingOptions
from video.sequence import MAGIC, is_sequence, pack_sequence
from video.source import Source


def picture(
    number: int, kind: str = "PNG", size: tuple[int, int] = (64, 48), **save: object
) -> bytes:
    file = io.BytesIO()
    Image.fromarray(draw(number, *size)).save(file, kind, **save)
    return file.getvalue()


def decode(pictures: list[bytes], limits: Limits | None = None, **options: object):
    sampling = SamplingOptions().updated(options, limit=3600)
    return decode_clip(Source(pack_sequence(pictures), limits), sampling)


def test_every_picture_is_taken():
    clip = decode([picture(n, kind) for n, kind in enumerate(("JPEG", "PNG", "WEBP", "BMP"))])
    assert numbers(clip.frames) == [0, 1, 2, 3]
    assert clip.times.tolist() == [0, 1, 2, 3]
    assert (clip.sampled_fps, clip.duration, clip.sound, clip.lost) == (1.0, 4.0, None, 0)
    clip = decode([picture(n) for n in range(5)], fps=2)
    assert numbers(clip.frames) == [0, 1, 2, 3, 4, 4]  # pairs of frames
    assert clip.times.tolist() == [0, 0.5, 1, 1.5, 2, 2]
    assert clip.duration == 2.5
    clip = decode([picture(7)])
    assert numbers(clip.frames) == [7, 7]
    assert clip.times.tolist() == [0, 0]


def test_fewer_when_wished_or_needed():
    many = [picture(n) for n in range(20)]
    assert numbers(decode(many, num_frames=4).frames) == [0, 6, 12, 19]
    clip = decode(many, max_frames=5, fps=10)
    assert numbers(clip.frames) == [0, 6, 12, 19]
    assert np.allclose(clip.times, [0, 0.6, 1.2, 1.9])
    assert numbers(decode(many[:2], min_frames=8).frames) == [0, 1]


def test_pictures_are_scaled_like_the_first_and_upright():
    turned = Image.fromarray(draw(1, 64, 48)).transpose(Image.Transpose.ROTATE_90)
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(file, "JPEG", exif=exif)
    clip = decode(
        [picture(0), file.getvalue(), picture(2, size=(128, 96)), picture(3, size=(40, 30))]
    )
    assert clip.frames.shape == (4, 48, 64, 3)
    assert numbers(clip.frames) == [0, 1, 2, 3]


def test_transparency_is_shown_on_white():
    file = io.BytesIO()
    Image.new("RGBA", (64, 48), (255, 0, 0, 0)).save(file, "PNG")
    assert (decode([file.getvalue()]).frames == 255).all()


def test_what_is_wrong_is_named():
    good = picture(0)
    with pytest.raises(MediaError, match="picture 1 of the sequence cannot be decoded"):
        decode([good, b"nothing", good])
    with pytest.raises(MediaError, match="picture 2 of the sequence cannot be decoded"):
        decode([good, good, good[: len(good) // 2]])
    with pytest.raises(MediaError, match="picture 0 of the sequence has 64 x 48 pixels"):
        decode([good], Limits(frame_pixels=1000))
    with pytest.raises(MediaError, match="more than 2 pictures"):
        decode([good] * 3, Limits(sampled_frames=2))
    with pytest.raises(MediaError, match="holds no pictures"):
        decode([])
    whole = pack_sequence([good])
    for spoiled in (whole[:-1], whole + b"x", MAGIC + struct.pack(">Q", 1 << 62)):
        assert is_sequence(memoryview(spoiled))
        with pytest.raises(MediaError, match="the sequence of pictures is damaged"):
            decode_clip(Source(spoiled), SamplingOptions())
