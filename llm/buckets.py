"""Length buckets: classes of requests by their uncached work, each with replicas of its own.

A long prefill slows every request that shares its replica (each pass waits for the longest chunk,
and attention over a long prefix makes chunks slow), so long and short work are kept apart. A class
that is idle lends its replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Upper bounds in tokens of the classes 0-64K, 64K-256K and 256K-1M.
BOUNDS = (65_536, 262_144, 1_048_576)


@dataclass(frozen=True)
class BucketState:
    """A class at this moment: replicas alive, and uncached tokens queued and running on them."""

    replicas: int
    load: float

    @property
    def per_replica(self) -> float:
        """Tokens per replica; infinite without replicas."""
        return self.load / self.replicas if self.replicas else float("inf")


@dataclass(frozen=True)
class BucketPolicy:
    """Classes and the rules by which work overflows into others.

    `bounds`: upper bound of each class in uncached tokens, ascending; the last class also takes
    what is longer. A class is *busy* when a replica has on average more than `busy_tokens` queued
    and running, *idle* when it has at most `idle_tokens`.
    Work of a busy class goes to a longer class that is idle (the nearest), and only with
    `overflow_down` to a shorter one: a long prefill delays the short work that arrives behind it.
    A class without replicas is served by the nearest longer class that has some, else by the
    nearest shorter one, whatever their load: nothing waits for a class that is scaled to zero
    while somebody could serve it.
    """

    bounds: tuple[int, ...] = BOUNDS
    busy_tokens: float = 32_768.0
    idle_tokens: float = 0.0
    overflow_down: bool = False

    def __post_init__(self) -> None:
        if not self.bounds:
            raise ValueError("bounds must name at least one class")
        if any(a >= b for a, b in zip((0, *self.bounds), self.bounds, strict=False)):
            raise ValueError(f"bounds must ascend from above 0, got {list(self.bounds)}")
        if not 0 <= self.idle_tokens <= self.busy_tokens:
            raise ValueError(
                f"idle_tokens must be from 0 to busy_tokens ({self.busy_tokens}), "
                f"got {self.idle_tokens}"
            )

    def classify(self, uncached: int) -> int:
        """The class of a request: the first whose bound is not below its uncached tokens."""
        for index, bound in enumerate(self.bounds):
            if uncached <= bound:
                return index
        return len(self.bounds) - 1

    def choose(self, uncached: Sequence[int], states: Sequence[BucketState]) -> int | None:
        """The class that serves a request; None when no class has a replica.

        `uncached[k]`: uncached tokens if class k served it (its replicas hold different
        prefixes). A request belongs to the shortest class that is long enough for what it would
        compute there, so a long conversation whose prefix is held by the short class stays there.
        """
        if len(uncached) != len(self.bounds) or len(states) != len(self.bounds):
            raise ValueError(
                f"{len(self.bounds)} classes need as many estimates and states, "
                f"got {len(uncached)} and {len(states)}"
            )
        own = self._own(uncached, states)
        if states[own].replicas and states[own].per_replica <= self.busy_tokens:
            return own
        longer = range(own + 1, len(self.bounds))
        shorter = range(own - 1, -1, -1)
        if not states[own].replicas:
            return next((k for k in (*longer, *shorter) if states[k].replicas), None)
        for k in (*longer, *(shorter if self.overflow_down else ())):
            if states[k].replicas and states[k].per_replica <= self.idle_tokens:
                return k
        return own

    def _own(self, uncached: Sequence[int], states: Sequence[BucketState]) -> int:
        last = len(self.bounds) - 1
        for k in range(last):
            if states[k].replicas and self.classify(uncached[k]) <= k:
                return k
        # Nobody short has replicas for it: the class by the least work that anyone needs.
        return self.classify(min(uncached))
