"""Hashes over the coded bytes of ranges of packets, wherever in the file these lie."""

from __future__ import annotations

import hashlib

import numpy as np

from video.index import PacketIndex
from video.packets import demux
from video.source import Source

CONTIGUOUS = ("mov", "avi")
"""Demuxers whose packets are the bytes of the file at their position."""


class PacketHashes:
    """Hashes of one stream's packets, of a range when it is asked for.

    Where packets are slices of the file only the bytes of the ranges asked for are read, in long
    stretches, so that hashing runs at its full speed and beside other threads. Elsewhere all
    packets are read and hashed here.
    """

    def __init__(self, source: Source, stream: int, index: PacketIndex) -> None:
        self._source = source
        self._index = index
        self._each: list[bytes] | None = None
        with source.open() as container:
            sliced = container.format.name.split(",")[0] in CONTIGUOUS
            if not sliced or (index.position < 0).any():
                packets = demux(container, container.streams[stream], source)
                self._each = [hashlib.blake2b(bytes(packet)).digest() for packet in packets]

    def of(self, first: int, last: int) -> bytes:
        """32 bytes for packets first..last, inclusive: their contents and where one ends."""
        self._source.budget.check()
        if self._each is not None:
            return hashlib.blake2b(b"".join(self._each[first : last + 1]), digest_size=32).digest()
        sizes = self._index.size[first : last + 1]
        starts = self._index.position[first : last + 1]
        state = hashlib.blake2b(sizes.astype("<i8").tobytes(), digest_size=32)
        ends = starts + sizes
        cuts = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        for start, end in zip(
            starts[np.append(0, cuts)].tolist(), ends[np.append(cuts, 0) - 1].tolist(), strict=True
        ):
            state.update(self._source.data[start:end])
        return state.digest()
