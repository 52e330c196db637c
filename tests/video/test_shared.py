from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from video import shared


@dataclass
class Thing:
    big: np.ndarray
    part: np.ndarray
    small: np.ndarray
    word: str


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_arrays_come_back_equal_and_writable():
    arena = shared.Arena()
    big = arena.allocate((4, 5, 3), "uint8")
    assert not big.any()
    big[:] = np.arange(60).reshape(4, 5, 3)
    other = arena.allocate((7,), "float32")
    thing = Thing(big[:2], other[3:5], np.arange(3.0), "word")
    other[:] = np.arange(7)
    packed, descriptors = arena.pack(thing)
    assert [b if isinstance(b, tuple) else len(b) for b in packed.buffers] == [
        (0, 0, 30),
        (1, 12, 8),
        24,
    ]
    copy = shared.unpack(packed, [os.dup(d) for d in descriptors])
    arena.close()
    assert copy.word == "word"
    assert np.array_equal(copy.big, np.arange(30).reshape(2, 5, 3))
    assert copy.part.tolist() == [3, 4]
    assert copy.small.tolist() == [0, 1, 2]
    copy.big[0, 0, 0] = 9
    assert big[0, 0, 0] == 9  # the same memory


def test_empty_arrays_need_no_memory():
    arena = shared.Arena()
    packed, descriptors = arena.pack(arena.allocate((1, 0), "float32"))
    assert descriptors == []
    assert shared.unpack(packed, []).shape == (1, 0)


def test_nothing_stays_open():
    before = descriptors()
    for _ in range(5):
        arena = shared.Arena()
        array = arena.allocate((1000,), "uint8")
        packed, sent = arena.pack(array)
        copy = shared.unpack(packed, [os.dup(d) for d in sent])
        arena.close()
        view = shared.view(shared.share(b"12345"), 5)
        assert bytes(view) == b"12345"
        assert bytes(shared.view(shared.share(b""), 0)) == b""
        del array, copy, view
    assert descriptors() == before
