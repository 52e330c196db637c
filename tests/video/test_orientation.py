from __future__ import annotations

import numpy as np
import pytest

from tests.video.clips import CLOSED, Clip, numbers
from video.decode import decode_clip
from video.orientation import Orientation, from_matrix
from video.sampling import SamplingOptions
from video.source import Source

ONE = 1 << 16


def matrix(a, b, c, d):
    return [a * ONE, b * ONE, 0, c * ONE, d * ONE, 0, 0, 0, 1 << 30]


@pytest.mark.parametrize(
    "numbers4",
    [
        (a, b, c, d)
        for a in (0, 1, -1)
        for b in (0, 1, -1)
        for c in (0, 1, -1)
        for d in (0, 1, -1)
        if abs(a * d - b * c) == 1 and a * b == 0 and c * d == 0
    ],
)
def test_pixels_go_where_the_matrix_sends_them(numbers4):  # case 37
    a, b, c, d = numbers4
    height, width = 2, 3
    stored = np.arange(height * width).reshape(height, width, 1)
    moved = {
        (a * x + c * y, b * x + d * y): stored[y, x, 0] for y in range(height) for x in range(width)
    }
    left, top = (min(p[axis] for p in moved) for axis in (0, 1))
    orientation = from_matrix(matrix(*numbers4))
    upright = orientation.apply(stored)
    assert upright.shape[:2] == orientation.size(height, width)
    for (x, y), value in moved.items():
        assert upright[y - top, x - left, 0] == value


def test_skewed_and_empty_matrices():
    assert from_matrix([0] * 9) == Orientation()
    assert from_matrix([60000, 20000, 0, -20000, 60000, 0, 0, 0, 0]) == Orientation()
    assert from_matrix([20000, 60000, 0, -60000, 20000, 0, 0, 0, 0]) == Orientation(True, True)


@pytest.mark.parametrize("container", ["mp4", "mov", "matroska"])
@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotated_clips_come_out_upright(container, degrees):  # case 37
    clip = Clip(frames=24, rotation=degrees, container=container, options=CLOSED)
    decoded = decode_clip(Source(clip.encode()), SamplingOptions(fps=10), chunks=3)
    if degrees != 180:
        assert decoded.frames.shape[1:] == (64, 48, 3)  # stored 48 x 64
    back = np.rot90(decoded.frames, k=-degrees // 90, axes=(1, 2))
    assert numbers(back) == [0, 3, 6, 9, 13, 16, 19, 23]


def test_a_phone_held_upright():  # case 37: the matrix that phones write, a quarter turn clockwise
    clip = Clip(frames=24, matrix=matrix(0, 1, -1, 0), options=CLOSED)
    decoded = decode_clip(Source(clip.encode()), SamplingOptions())
    assert numbers(np.rot90(decoded.frames, k=1, axes=(1, 2))) == [0, 3, 6, 9, 13, 16, 19, 23]


@pytest.mark.parametrize(
    ("degrees", "hflip", "vflip"),
    [(0, True, False), (90, True, False), (0, False, True), (270, False, True)],
)
def test_mirrored_clips(degrees, hflip, vflip):  # case 37
    clip = Clip(frames=12, rotation=degrees, hflip=hflip, vflip=vflip, options=CLOSED)
    decoded = decode_clip(Source(clip.encode()), SamplingOptions())
    back = decoded.frames
    if hflip:
        back = back[:, :, ::-1]
    if vflip:
        back = back[:, ::-1]
    back = np.rot90(back, k=-degrees // 90, axes=(1, 2))
    assert numbers(back) == [0, 1, 3, 4, 6, 7, 9, 11]


def test_the_size_function_sees_the_upright_size():
    asked = []

    def size_of(frames, height, width):
        asked.append((frames, height, width))
        return 32, 24

    clip = Clip(frames=24, rotation=90, options=CLOSED)
    decoded = decode_clip(Source(clip.encode()), SamplingOptions(), size_of)
    assert asked == [(8, 64, 48)]
    assert decoded.frames.shape == (8, 32, 24, 3)
    back = np.rot90(decoded.frames, k=-1, axes=(1, 2))
    assert numbers(back) == [0, 3, 6, 9, 13, 16, 19, 23]
