"""Inline media: RFC 2397 in the forms that clients send."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.data_uri import InlineError, decode_base64, decode_data_uri, is_data_uri

BYTES = bytes(range(256))
TEXT = base64.b64encode(BYTES).decode()


@pytest.mark.parametrize(
    "head",
    [  # case 13
        "data:image/jpeg;base64",
        "data:image/jpeg;charset=utf-8;base64",
        "data:image/jpeg;name=a.jpg;base64",
        "data:image/jpeg;BASE64",
        "data:;base64",
        "DATA:IMAGE/JPEG;Base64",
        "data:image/jpeg; base64",
        "data:image/svg+xml;base64;base64",
    ],
)
def test_heads(head: str) -> None:
    assert is_data_uri(head)
    assert decode_data_uri(f"{head},{TEXT}", 256) == BYTES


@pytest.mark.parametrize(
    "text",
    [  # case 15
        "\r\n".join(TEXT[i : i + 76] for i in range(0, len(TEXT), 76)),
        TEXT.rstrip("="),
        base64.urlsafe_b64encode(BYTES).decode(),
        f"  {TEXT}\n",
        TEXT.replace("+", "%2B").replace("/", "%2F"),
    ],
)
def test_accepted_base64(text: str) -> None:
    assert decode_data_uri(f"data:image/png;base64,{text}", 256) == BYTES
    assert decode_base64(text, 256) == BYTES


@pytest.mark.parametrize(
    "text", ["aGk!", "aGk.", "a", "aG=k", "aGké", "aGk\x00", "a-+_/é", "", "   ", "="]
)
def test_refused_base64(text: str) -> None:  # case 15
    with pytest.raises(InlineError) as caught:
        decode_base64(text, 256)
    assert not caught.value.too_large
    assert "aG" not in caught.value.reason


def test_percent_encoding() -> None:
    assert decode_data_uri("data:text/plain,h%69%21", 10) == b"hi!"
    assert decode_data_uri("data:,hi", 10) == b"hi"
    # "base64" is the encoding only as the last parameter.
    assert decode_data_uri("data:text/plain;base64;name=x,aGk=", 10) == b"aGk="
    for broken in ("data:text/plain", "data:text/plain,", "data:,é"):
        with pytest.raises(InlineError):
            decode_data_uri(broken, 10)


@pytest.mark.parametrize("size", [99, 100, 101])
def test_limit(size: int) -> None:  # case 16
    data = b"x" * size
    for uri in (
        f"data:;base64,{base64.b64encode(data).decode()}",
        f"data:,{data.decode()}",
        "data:," + "%78" * size,
    ):
        if size <= 100:
            assert decode_data_uri(uri, 100) == data
        else:
            with pytest.raises(InlineError) as caught:
                decode_data_uri(uri, 100)
            assert caught.value.too_large


@given(data=st.binary(min_size=1, max_size=400), padded=st.booleans(), safe=st.booleans())
def test_round_trip(data: bytes, padded: bool, safe: bool) -> None:
    text = (base64.urlsafe_b64encode if safe else base64.b64encode)(data).decode()
    assert decode_base64(text if padded else text.rstrip("="), 400) == data


@pytest.mark.parametrize("size", [3 * 2**18 - 1, 3 * 2**18, 3 * 2**18 + 1])
def test_slices_of_large_items(size: int) -> None:
    data = (BYTES * (size // 256 + 1))[:size]
    assert decode_base64(base64.b64encode(data).decode(), size) == data
