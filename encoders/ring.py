"""A hash ring with bounded loads: which replica should keep which digest.

Consistent hashing with a bound after Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with
Bounded Loads" (arXiv:1608.01350): a replica whose load has reached (1 + epsilon) times the mean is
passed over for the next one on the ring. Everything follows from names, keys and loads alone, never
from `hash()` or the process, so that all routers agree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from math import ceil

# 128 points a replica: the shares of the ring differ by about 1 / sqrt(128) = 9 % of the mean.
POINTS = 128
EPSILON = 0.2
# Calls in a router's memory, see `RecentLoad`.
WINDOW = 1024.0


def _place(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Ring:
    """An immutable ring over the names of replicas, each at `points` places."""

    def __init__(self, names: Iterable[str], points: int = POINTS) -> None:
        if points < 1:
            raise ValueError(f"points must be at least 1, got {points}")
        self.names = tuple(sorted(set(names)))
        placed = sorted((_place(f"{name}:{i}"), name) for name in self.names for i in range(points))
        self._places = [place for place, _ in placed]
        self._owners = [name for _, name in placed]

    def order(self, key: str) -> list[str]:
        """All names, in the order in which they are to be asked for `key`."""
        start = bisect_right(self._places, _place(key))
        found: dict[str, None] = {}
        for at in range(start - len(self._owners), start):
            found.setdefault(self._owners[at])
            if len(found) == len(self.names):
                break
        return list(found)


def bound(total: float, count: int, epsilon: float, slack: float) -> float:
    """The load above which a replica takes no more: ceil((1 + epsilon) * mean), `total` with the
    call to be placed; at least `slack`, below which nobody counts as loaded.
    """
    return max(float(ceil((1 + epsilon) * total / count)), slack)


def bounded_order(
    order: list[str], loads: Mapping[str, float], epsilon: float = EPSILON, slack: float = 0.0
) -> list[str]:
    """`order` with the replicas that would exceed the bound moved behind the others.

    Nobody is left out: with `slack` 0 somebody is always below the bound, and when a replica
    refuses for reasons of its own the next one is still known.
    """
    total = sum(loads.get(name, 0.0) for name in order) + 1
    most = bound(total, len(order), epsilon, slack) if order else 0.0
    over = {name for name in order if loads.get(name, 0.0) + 1 > most}
    return [name for name in order if name not in over] + [name for name in order if name in over]


class RecentLoad:
    """How many calls each replica was given lately: a count that fades by 1/window per call.

    The sum over all replicas approaches `window`, so that the bound on it is one on shares of the
    work and not only on bursts.
    """

    def __init__(self, window: float = WINDOW) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self._keep = 1 - 1 / window
        # Counts are in units of the latest call's weight, which grows instead of fading the rest.
        self._unit = 1.0
        self._counts: dict[str, float] = {}

    def add(self, name: str) -> None:
        """Count a call given to `name`."""
        self._unit /= self._keep
        self._counts[name] = self._counts.get(name, 0.0) + self._unit
        if self._unit > 1e100:
            self._counts = {name: count / self._unit for name, count in self._counts.items()}
            self._unit = 1.0

    def resize(self, names: Iterable[str]) -> None:
        """Forget who is gone; who is new starts with the mean, or it would draw every other's
        calls until it has caught up.
        """
        names = set(names)
        kept = {name: self._counts[name] for name in names if name in self._counts}
        mean = sum(kept.values()) / len(kept) if kept else 0.0
        self._counts = {name: kept.get(name, mean) for name in names}

    def loads(self) -> dict[str, float]:
        """The faded counts by name."""
        return {name: count / self._unit for name, count in self._counts.items()}
