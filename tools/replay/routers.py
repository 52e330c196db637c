"""Routers to compare with: round robin, power of two choices, session hashing, prefix affinity."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from tools.replay.replica import Replica
from tools.replay.request import Request


class Fleet:
    """What any router may know of the replicas: requests queued and running, and uncached tokens
    of these (float64 ``[replicas]``)."""

    def __init__(self, replicas: int) -> None:
        self.ongoing = [0] * replicas
        self.loads = np.zeros(replicas)

    def __len__(self) -> int:
        return len(self.ongoing)


class Router(Protocol):
    """Chooses a replica. ``wants_reports``: replicas record what changes in their caches, and
    ``report`` is called with one from time to time; ``changes`` is cleared afterwards."""

    wants_reports: bool

    def choose(self, request: Request, now: float) -> int: ...
    def first_token(self, request: Request) -> None: ...
    def report(self, replica: Replica, now: float) -> None: ...


class _Deaf:
    """A router that hears nothing of caches."""

    wants_reports = False

    def first_token(self, request: Request) -> None: ...

    def report(self, replica: Replica, now: float) -> None:
        raise AssertionError("this router asked for no reports")


class RoundRobin(_Deaf):
    def __init__(self, fleet: Fleet) -> None:
        self._count = len(fleet)
        self._next = -1

    def choose(self, request: Request, now: float) -> int:
        self._next = (self._next + 1) % self._count
        return self._next


class PowerOfTwo(_Deaf):
    """The less busy of two random replicas, by requests queued and running: Serve's default."""

    def __init__(self, fleet: Fleet, seed: int = 0) -> None:
        self._fleet = fleet
        self._random = random.Random(seed)

    def choose(self, request: Request, now: float) -> int:
        return self.among(range(len(self._fleet)))

    def among(self, replicas: Any) -> int:
        """The same among some of the replicas."""
        two = self._random.sample(replicas, min(2, len(replicas)))
        return min(two, key=self._fleet.ongoing.__getitem__)


class SessionHash(_Deaf):
    """A ring of 100 points per replica, by session: Serve's ConsistentHashRouter.

    Like it, it does not look at queues.
    """

    POINTS = 100

    def __init__(self, fleet: Fleet) -> None:
        ring = sorted(
            (_point(f"{replica}:{i}"), replica)
            for replica in range(len(fleet))
            for i in range(self.POINTS)
        )
        self._points = [point for point, _ in ring]
        self._replicas = [replica for _, replica in ring]

    def choose(self, request: Request, now: float) -> int:
        at = bisect_left(self._points, _point(f"session {request.session}"))
        return self._replicas[at % len(self._replicas)]


class PrefixAffinity(_Deaf):
    """Serve's PrefixCacheAffinityRouter: its own prefix tree, its rules, blocks as characters.

    While queues differ by no more than ``imbalanced_threshold`` (never, by default), the replicas
    with the longest match are asked if it covers a tenth of the prompt, else those to which the
    fewest characters were sent; of them, two random ones compare their queues.
    """

    MATCH_RATE = 0.1

    def __init__(
        self, fleet: Fleet, seed: int = 0, imbalanced_threshold: float = float("inf")
    ) -> None:
        # Loads Ray; the other routers do without.
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree

        self._fleet = fleet
        self._threshold = imbalanced_threshold
        self._two = PowerOfTwo(fleet, seed)
        self._names = [str(i) for i in range(len(fleet))]
        self._tree = PrefixTree()
        self._tree.add_tenants(self._names, 0.0)
        self._letters: dict[int, str] = {}

    def choose(self, request: Request, now: float) -> int:
        text = "".join(map(self._letter, request.path))
        chosen = self._candidates(text)
        replica = self._two.among(chosen or range(len(self._fleet)))
        self._tree.insert(text, str(replica), now)
        return replica

    def _candidates(self, text: str) -> list[int]:
        ongoing = self._fleet.ongoing
        if max(ongoing) - min(ongoing) > self._threshold:
            return []
        matched, names = self._tree.prefix_match(text, self._names)
        if len(matched) / len(text) < self.MATCH_RATE:
            names = self._tree.get_smallest_tenants()
        return [int(name) for name in names or ()]

    def _letter(self, block: int) -> str:
        letter = self._letters.get(block)
        if letter is None:
            letter = self._letters[block] = chr(len(self._letters) + 1)
        return letter


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


RouterFactory = Callable[[Fleet], Router]
BASELINES: dict[str, RouterFactory] = {
    "round-robin": RoundRobin,
    "power-of-two": PowerOfTwo,
    "session-hash": SessionHash,
    "prefix-affinity": PrefixAffinity,
}
