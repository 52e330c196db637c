"""The file of one embedding: a fixed head, its description as JSON, the rows.

A file gets its name only when it is complete, so that a reader never sees half of one.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import orjson

from encoders.embedding import Embedding, Modality, Rows, RowsArray, Segment, Special, Text

MAGIC = b"omnirow1"
# magic, bytes of the description, its checksum, offset of the rows, bytes of the rows
_HEAD = struct.Struct("<8sIIQQ")
# Rows start at a multiple of this, as vector instructions like it.
_ALIGN = 64
_FIRST_READ = 4096
_PAGE = 4096
_BITS = {"float32": "float32", "float16": "float16", "bfloat16": "uint16"}


class Damaged(ValueError):
    """A file that is not one of ours, or not whole."""


@dataclass(frozen=True)
class Head:
    """What a file says before its rows. `seconds` of work give the embedding back."""

    digest: str
    modality: Modality
    layout: tuple[Segment, ...]
    dtype: str
    rows: int
    hidden: int
    offset: int
    seconds: float


def charge(size: int) -> int:
    """Bytes that a file of `size` bytes takes in memory."""
    return -(-size // _PAGE) * _PAGE


def pack_head(embedding: Embedding, rows: RowsArray, seconds: float) -> bytes:
    """Everything that goes before the rows."""
    description = orjson.dumps(
        {
            "digest": embedding.digest,
            "modality": embedding.modality,
            "layout": [_segment(segment) for segment in embedding.layout],
            "dtype": rows.dtype,
            "shape": [int(side) for side in rows.data.shape],
            "seconds": seconds,
        }
    )
    offset = -(-(_HEAD.size + len(description)) // _ALIGN) * _ALIGN
    head = _HEAD.pack(MAGIC, len(description), crc32(description), offset, rows.data.nbytes)
    return (head + description).ljust(offset, b"\0")


def read_head(descriptor: int) -> Head:
    """The head of an open file. Raises `Damaged`."""
    size = os.fstat(descriptor).st_size
    start = os.pread(descriptor, _FIRST_READ, 0)
    if len(start) < _HEAD.size:
        raise Damaged("the file has no head")
    magic, length, checksum, offset, row_bytes = _HEAD.unpack_from(start)
    if magic != MAGIC or offset + row_bytes != size or _HEAD.size + length > offset:
        raise Damaged("the file's head does not fit the file")
    description = start[_HEAD.size : _HEAD.size + length]
    if len(description) < length:
        description = os.pread(descriptor, length, _HEAD.size)
    if crc32(description) != checksum:
        raise Damaged("the file's description is not the one that was written")
    head = _parse(orjson.loads(description), offset)
    width = np.dtype(_BITS[head.dtype]).itemsize
    if head.rows * head.hidden * width != row_bytes:
        raise Damaged("the file's rows do not have the described shape")
    return head


def rows_of(memory: Any, head: Head) -> RowsArray:
    """The rows [n, hidden] in a mapping of the whole file, without a copy."""
    count = head.rows * head.hidden
    flat = np.frombuffer(memory, np.dtype(_BITS[head.dtype]), count, head.offset)
    return RowsArray(flat.reshape(head.rows, head.hidden), head.dtype)


def can_store(rows: RowsArray) -> bool:
    """Whether rows have a type that the format knows and fill their memory in order."""
    return (
        _BITS.get(rows.dtype) == rows.data.dtype.name
        and rows.data.flags.c_contiguous
        and rows.data.nbytes > 0
    )


def _parse(fields: dict[str, Any], offset: int) -> Head:
    rows, hidden = fields["shape"]
    return Head(
        fields["digest"],
        fields["modality"],
        tuple(_parse_segment(segment) for segment in fields["layout"]),
        fields["dtype"],
        rows,
        hidden,
        offset,
        fields["seconds"],
    )


def _segment(segment: Segment) -> list[Any]:
    if isinstance(segment, Rows):
        return ["rows", segment.modality, segment.count]
    if isinstance(segment, Text):
        return ["text", segment.text]
    return ["special", segment.token]


def _parse_segment(fields: list[Any]) -> Segment:
    kind, *rest = fields
    if kind == "rows":
        return Rows(*rest)
    return Text(*rest) if kind == "text" else Special(*rest)
