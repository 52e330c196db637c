"""The form of one entry on disk: a header, then the page's bytes.

A reader takes nothing on trust: magic, key, length and checksum must all be those it asked for.
An entry that was torn by a crash, cut off, overwritten or written for another model is a miss.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

import xxhash

KEY_BYTES = 32
_HEADER = struct.Struct("<8s32sQQ8x")
HEADER_BYTES = _HEADER.size
_MAGIC = b"OMNIKV\x00\x01"

Views = Sequence[memoryview]
"""The parts of one page in memory (K, then V), each a flat view of bytes."""


def entry_key(namespace: bytes, pool: str, page: str) -> bytes:
    """The store's key of one page: 32 bytes.

    ``namespace``: digest of everything that makes KV of equal tokens differ; ``pool``: which KV
    pool; ``page``: hash chain over the tokens up to the page's end, hexadecimal.
    """
    name = pool.encode()
    text = len(name).to_bytes(2, "little") + name + page.encode()
    return blake2b(text, digest_size=KEY_BYTES, key=namespace[:64]).digest()


def size_of(views: Views) -> int:
    """Bytes of a page."""
    return sum(view.nbytes for view in views)


def checksum(views: Views) -> int:
    """64-bit checksum of a page's bytes."""
    state = xxhash.xxh3_64()
    for view in views:
        state.update(view)
    return state.intdigest()


def header(key: bytes, views: Views) -> bytes:
    """The header of an entry with this content."""
    return _HEADER.pack(_MAGIC, key, size_of(views), checksum(views))


def is_intact(found: bytes | bytearray | memoryview, key: bytes, views: Views) -> bool:
    """Whether a header read from disk belongs to ``key`` and to the bytes in ``views``."""
    if len(found) != HEADER_BYTES:
        return False
    magic, owner, length, digest = _HEADER.unpack(found)
    return bool(
        magic == _MAGIC and owner == key and length == size_of(views) and digest == checksum(views)
    )
