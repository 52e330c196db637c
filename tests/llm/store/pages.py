"""Pages for tests of the store: bytes that follow from a number, in two parts like K and V."""

from __future__ import annotations

import hashlib
import random

from llm.store.entry import Views


def key(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


def page(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def views_of(data: bytes | bytearray) -> Views:
    view = memoryview(data)
    cut = len(data) // 3
    return [view[:cut], view[cut:]]


def entry(number: int, size: int) -> tuple[bytes, Views]:
    return key(number), views_of(page(number, size))


def empty(size: int) -> tuple[bytearray, Views]:
    """Room for a page, and the views to read it into."""
    room = bytearray(size)
    return room, views_of(room)
