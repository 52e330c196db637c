"""Inline media: data URIs (RFC 2397) and bare base64.

Accepted: any media type, any parameters, upper or lower case; the encoding is the last parameter
("base64") or percent-encoding when there is none. Base64 may hold white space and line breaks, may
lack its padding and may use the URL-safe alphabet; any other character is an error.
"""

from __future__ import annotations

import binascii
from urllib.parse import unquote_to_bytes

import pybase64

_WHITE_SPACE = b" \t\r\n\x0b\x0c"
_SLICE = 4 * 2**18
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class InlineError(ValueError):
    """Inline data that cannot be decoded. `too_large` says that it passed the size limit."""

    def __init__(self, reason: str, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.too_large = too_large


def is_data_uri(source: str) -> bool:
    """Whether `source` is a data URI (the scheme is case-insensitive)."""
    return source[:5].lower() == "data:"


def decode_data_uri(uri: str, max_bytes: int) -> bytes:
    """The bytes of a data URI. Raises `InlineError`; a large item is refused before decoding."""
    head, comma, payload = uri[5:].partition(",")
    if not comma:
        raise InlineError("the data URI has no comma between its header and its data")
    if head.rpartition(";")[2].strip().lower() == "base64" and ";" in head:
        return decode_base64(payload, max_bytes)
    # Percent-encoding never makes data longer than its text, and at most three times shorter.
    if len(payload) > 3 * max_bytes:
        raise _too_large()
    try:
        data = unquote_to_bytes(payload.encode("ascii"))
    except UnicodeEncodeError:
        raise InlineError("the data URI holds characters outside ASCII") from None
    if len(data) > max_bytes:
        raise _too_large()
    return _not_empty(data)


def decode_base64(text: str, max_bytes: int) -> bytes:
    """The bytes of base64 text, under the rules above. Raises `InlineError`."""
    try:
        raw = text.encode("ascii")
    except UnicodeEncodeError:
        raise InlineError("the base64 data holds characters outside ASCII") from None
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    # Looking is far cheaper than rewriting: most data needs neither step.
    if any(bytes((mark,)) in raw for mark in _WHITE_SPACE):
        raw = raw.translate(None, delete=_WHITE_SPACE)
    if b"-" in raw or b"_" in raw:
        raw = raw.translate(_URL_SAFE)
    raw = raw.rstrip(b"=")
    if len(raw) * 3 // 4 > max_bytes:
        raise _too_large()
    if b"=" in raw:
        raise InlineError("the base64 data is damaged: padding before its end")
    raw += b"=" * (-len(raw) % 4)
    try:
        # In slices: one call would hold the interpreter's lock for all of a large item.
        slices = range(0, len(raw), _SLICE)
        parts = [pybase64.b64decode(raw[at : at + _SLICE], validate=True) for at in slices]
    except binascii.Error:
        raise InlineError("the base64 data is damaged: it does not decode") from None
    return _not_empty(b"".join(parts))


def _not_empty(data: bytes) -> bytes:
    if not data:
        raise InlineError("the inline data is empty")
    return data


def _too_large() -> InlineError:
    return InlineError("the inline data is too large", too_large=True)
