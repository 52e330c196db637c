"""Digests: no two different inputs share one, and every process agrees."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoders.digest import content_digest, media_digest

PALETTE_SIZE = 256


def test_shape_and_type_count() -> None:
    # case 23: 30x150 and 150x30 pixels of the same bytes; uint8 and int8 of the same bytes
    pixels = np.random.default_rng(0).integers(0, 256, (30, 150, 3), dtype=np.uint8)
    views = [pixels, pixels.reshape(150, 30, 3), pixels.view(np.int8), pixels.reshape(-1)]
    assert len({content_digest(view) for view in views}) == len(views)
    assert content_digest(pixels) == content_digest(pixels.copy(order="F"))
    big, little = np.zeros(3, ">u2"), np.zeros(3, "<u2")
    assert content_digest(big) != content_digest(little)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([[1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5]]),
        ([[1, 2], [3]], [1, 2, 3]),
        (["ab", "c"], ["a", "bc"]),
        ([b"ab", b"c"], [b"a", b"bc"]),
        ([b"", b"a"], [b"a", b""]),
        ([], [[]]),
        (1, True),
        (1, 1.0),
        (1, "1"),
        ("a", b"a"),
        (None, "None"),
        (0, False),
        ({"a": "b"}, ["a", "b"]),
        ({"a": {"b": 1}}, {"a": {}, "b": 1}),
    ],
)
def test_boundaries_and_types_count(left: object, right: object) -> None:
    # case 24
    assert content_digest(left) != content_digest(right)


def test_digest_is_256_bits_of_everything_named() -> None:
    # cases 24 and 29
    base = media_digest("video", b"clip", {"fps": 1.0, "max_frames": 8}, "m")
    assert len(base) == 64
    assert int(base, 16).bit_length() > 200
    assert base == media_digest("video", bytearray(b"clip"), {"max_frames": 8, "fps": 1.0}, "m")
    assert base == media_digest("video", memoryview(b"clip"), {"max_frames": 8, "fps": 1.0}, "m")
    others = [
        media_digest("image", b"clip", {"fps": 1.0, "max_frames": 8}, "m"),
        media_digest("video", b"clop", {"fps": 1.0, "max_frames": 8}, "m"),
        media_digest("video", b"clip", {"fps": 2.0, "max_frames": 8}, "m"),
        media_digest("video", b"clip", {"fps": 1.0}, "m"),
        media_digest("video", b"clip", {"fps": 1.0, "max_frames": 8}, "n"),
    ]
    assert len({base, *others}) == 6


def test_palettes_count() -> None:
    # case 27: the key is on the encoded bytes, which hold the palette
    import io

    from PIL import Image

    digests = set()
    for colour in (0, 1):
        image = Image.new("P", (16, 16), 5)
        image.putpalette([colour] * 3 * PALETTE_SIZE)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        digests.add(media_digest("image", buffer.getvalue(), {}, "m"))
    assert len(digests) == 2


@pytest.mark.parametrize("seed", ["0", "1"])
def test_other_processes_agree(seed: str) -> None:
    # case 24: no randomised hash, no set or mapping order
    code = (
        "from encoders.digest import media_digest;"
        "print(media_digest('image', b'x' * 99, {'b': [1, None], 'a': {'z': 'é', 'y': 2.5}}, 'm'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    options = {"a": {"y": 2.5, "z": "é"}, "b": [1, None]}
    assert done.stdout.strip() == media_digest("image", b"x" * 99, options, "m")


def test_the_value_is_fixed() -> None:
    # A stored cache outlives the process: a change of the encoding must be noticed.
    digest = media_digest("image", b"abc", {"max_pixels": 5}, "pocket")
    assert digest == "adbe9600f541ab77992ea3855d6df0031892e0a799f8155974ef4a60d3c2bb0b"


def test_unknown_types_are_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        content_digest({1, 2})
    with pytest.raises(TypeError, match="text names"):
        content_digest({1: 2})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_equal_digest_means_equal_value(left: object, right: object) -> None:
    if content_digest(left) == content_digest(right):
        assert repr_of(left) == repr_of(right)


def repr_of(value: object) -> object:
    """A form in which 1 and True differ and mappings have no order."""
    if isinstance(value, dict):
        return ("M", tuple(sorted((name, repr(repr_of(item))) for name, item in value.items())))
    if isinstance(value, list):
        return ("L", tuple(repr_of(item) for item in value))
    return (type(value).__name__, value)
