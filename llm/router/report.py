"""A replica's report to the routers: its load and what it holds, small and self-healing.

Reports travel as "latest value": a router may miss any of them. So a report never builds on the
one before: it states all blocks of one slice of the digests (`digest % slices == slice`), and the
slices take turns. Whatever a router missed, it agrees with the replica after as many reports as
there are slices, and so do all routers with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCKS = 4096


@dataclass(frozen=True)
class Report:
    """`load`: uncached tokens queued and running; `blocks`: digests of the slice, parents first,
    each with whether a match may stop there; `at`: when it was measured, seconds.
    """

    at: float
    load: float
    blocks: Mapping[int, bool]
    slices: int = 1
    slice: int = 0
    bytes_per_token: float | None = None

    def pack(self) -> dict[str, Any]:
        """Plain data; 8 bytes and a bit per block."""
        digests = np.fromiter(self.blocks.keys(), np.uint64, len(self.blocks))
        stops = np.fromiter(self.blocks.values(), np.bool_, len(self.blocks))
        return {
            "at": self.at,
            "load": self.load,
            "slices": self.slices,
            "slice": self.slice,
            "blocks": digests.tobytes(),
            "stops": np.packbits(stops).tobytes(),
            "bytes_per_token": self.bytes_per_token,
        }

    @classmethod
    def unpack(cls, data: Mapping[str, Any]) -> Report | None:
        """None for what is no report (a replica that has made none yet)."""
        if "blocks" not in data:
            return None
        digests = np.frombuffer(data["blocks"], np.uint64)
        packed = np.frombuffer(data["stops"], np.uint8)
        stops = np.unpackbits(packed, count=len(digests)).astype(np.bool_)
        return cls(
            data["at"],
            data["load"],
            dict(zip(digests.tolist(), stops.tolist(), strict=True)),
            data["slices"],
            data["slice"],
            data["bytes_per_token"],
        )


class Reporter:
    """Makes reports of at most about `most` blocks each."""

    def __init__(self, most: int = BLOCKS) -> None:
        self._most = most
        self._slices = 1
        self._next = 0

    def make(
        self, at: float, load: float, held: Mapping[int, bool], bytes_per_token: float | None = None
    ) -> Report:
        """The next report of a replica that holds `held`, parents first."""
        slices = 1 << max(0, (len(held) - 1) // self._most).bit_length()
        if slices != self._slices:
            self._slices, self._next = slices, 0
        turn, self._next = self._next, (self._next + 1) % slices
        chosen = {block: stop for block, stop in held.items() if block % slices == turn}
        return Report(at, load, chosen, slices, turn, bytes_per_token)
