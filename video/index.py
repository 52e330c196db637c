"""The index of one stream's coded packets.

A packet's number is its place in decode order, counted from 0 over the non-empty packets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MISSING = np.iinfo(np.int64).min
"""Stands for a timestamp that the container does not give."""


@dataclass(frozen=True)
class PacketIndex:
    """One entry per packet, in decode order. Times in ticks of the stream's time base."""

    pts: np.ndarray  # int64, MISSING where absent
    dts: np.ndarray  # int64, MISSING where absent
    duration: np.ndarray  # int64, 0 where unknown
    position: np.ndarray  # int64, byte offset in the file, -1 where unknown
    size: np.ndarray  # int64, bytes
    key: np.ndarray  # bool: decoding can start here
    discard: np.ndarray  # bool: decoded but not presented (edit list)

    def __len__(self) -> int:
        return len(self.pts)
