"""Pictures sent as one clip, packed as one byte string: a sequence goes every way a file goes.

Loads nothing; `video.decode_sequence` reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from video.errors import MediaError

MAGIC = b"omniseq1"
_LENGTH = struct.Struct(">Q")


def pack_sequence(pictures: Sequence[bytes]) -> bytes:
    """One byte string that holds encoded pictures, in order."""
    parts = [MAGIC]
    for picture in pictures:
        parts += [_LENGTH.pack(len(picture)), picture]
    return b"".join(parts)


def is_sequence(data: memoryview) -> bool:
    return bytes(data[: len(MAGIC)]) == MAGIC


def unpack_sequence(data: memoryview, most: int) -> list[memoryview]:
    """The encoded pictures, at least one. Raises MediaError for damage and more than `most`."""
    at = len(MAGIC)
    pictures = []
    while at < len(data):
        start = at + _LENGTH.size
        (length,) = _LENGTH.unpack(data[at:start]) if start <= len(data) else (len(data),)
        at = start + length
        if at > len(data):
            raise MediaError("the sequence of pictures is damaged")
        pictures.append(data[start:at])
        if len(pictures) > most:
            raise MediaError(f"the sequence has more than {most} pictures")
    if not pictures:
        raise MediaError("the sequence holds no pictures")
    return pictures
