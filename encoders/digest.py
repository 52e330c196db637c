"""Content digests: the identity of a media item in routing, caches, the prefix tree and logs.

A digest is a 256-bit BLAKE2b over tagged, length-prefixed fields, so that no two different field
lists share an encoding ([[1, 2], [3]] and [[1], [2, 3]] differ, and so do 1, True, 1.0 and "1"). It
depends on values alone: never on `hash()`, the order of a mapping or the process that computes it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

DIGEST_BYTES = 32


def media_digest(
    kind: str,
    data: bytes | bytearray | memoryview,
    options: Mapping[str, object],
    model: str,
) -> str:
    """Digest of one media item: 64 hex characters.

    `data` is the item as it was sent (encoded bytes: nothing is decoded on a hit), `options` every
    setting that changes the encoder's result, `model` the identity of the checkpoint. Raises
    `TypeError` for an option of a type without a canonical encoding.
    """
    return content_digest("media", kind, model, options, data)


def content_digest(*fields: object) -> str:
    """Digest of a list of fields: None, bool, int, float, str, bytes, list, tuple, mapping, array.

    An array is anything with `dtype`, `shape` and `tobytes` (numpy): type and shape count.
    """
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    _add(state, list(fields))
    return state.hexdigest()


def _add(state: Any, value: object) -> None:
    if value is None:
        _field(state, b"N", b"")
    elif isinstance(value, bool):
        _field(state, b"B", b"\x01" if value else b"\x00")
    elif isinstance(value, int):
        _field(state, b"I", str(value).encode())
    elif isinstance(value, float):
        _field(state, b"F", struct.pack(">d", value))
    elif isinstance(value, str):
        _field(state, b"S", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _field(state, b"Y", value)
    elif isinstance(value, Mapping):
        _mapping(state, value)
    elif isinstance(value, (list, tuple)):
        _header(state, b"L", len(value))
        for item in value:
            _add(state, item)
    elif all(hasattr(value, name) for name in ("dtype", "shape", "tobytes")):
        _array(state, value)
    else:
        raise TypeError(f"no canonical encoding for a digest field of type {type(value).__name__}")


def _mapping(state: Any, value: Mapping[Any, object]) -> None:
    if not all(isinstance(name, str) for name in value):
        raise TypeError("a mapping in a digest needs text names")
    _header(state, b"M", len(value))
    for name in sorted(value):
        _add(state, name)
        _add(state, value[name])


def _array(state: Any, value: Any) -> None:
    _header(state, b"A", 3)
    # numpy's short form ("<f4") also names the byte order.
    _add(state, str(getattr(value.dtype, "str", value.dtype)))
    _add(state, [int(side) for side in value.shape])
    _add(state, value.tobytes())


def _field(state: Any, tag: bytes, payload: bytes | bytearray | memoryview) -> None:
    _header(state, tag, payload.nbytes if isinstance(payload, memoryview) else len(payload))
    state.update(payload)


def _header(state: Any, tag: bytes, length: int) -> None:
    state.update(tag + struct.pack(">Q", length))
