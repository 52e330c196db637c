"""The engine's own orders of waiting requests: first come first served, lpm and hrrn."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from tools.replay.replica import Queue, Replica
from tools.replay.request import Request

# With more waiting, SGLang stops matching and serves in order of arrival.
MATCH_MOST = 128


class _Stateless:
    def join(self, request: Request, replica: Replica) -> None: ...
    def started(self, request: Request) -> None: ...
    def prefilled(self, request: Request) -> None: ...

    def limit(self, partial: Request, replica: Replica, budget: int) -> int:
        return budget


class FirstCome(_Stateless):
    """``fcfs``."""

    def order(self, replica: Replica, now: float) -> list[Request]:
        return list(replica.waiting.values())


class LongestPrefix(_Stateless):
    """``lpm``: the longest match first; of requests that share an unknown prefix, one."""

    def order(self, replica: Replica, now: float) -> list[Request]:
        waiting = list(replica.waiting.values())
        if len(waiting) > MATCH_MOST:
            return waiting
        hits, later = _matches(replica, waiting)
        return sorted(waiting, key=lambda r: inf if r.index in later else -float(hits[r.index]))


class HighestRatio(_Stateless):
    """``hrrn``: the most prefill tokens waited per uncached token first."""

    def order(self, replica: Replica, now: float) -> list[Request]:
        waiting = list(replica.waiting.values())
        if len(waiting) > MATCH_MOST:
            return waiting
        hits, later = _matches(replica, waiting)

        def key(request: Request) -> tuple[float, int]:
            if request.index in later:
                return inf, request.index
            uncached = request.tokens - hits[request.index]
            if uncached <= 0:
                return -inf, request.index
            return -(replica.processed - request.joined) / uncached, request.index

        return sorted(waiting, key=key)


def _matches(replica: Replica, waiting: list[Request]) -> tuple[dict[int, int], set[int]]:
    """Cached tokens by request, and those without any that share a first block with an earlier
    one: SGLang defers these, so that one computes what all of them need."""
    hits: dict[int, int] = {}
    later: set[int] = set()
    first: set[int] = set()
    for request in waiting:
        hit = hits[request.index] = request.tokens - replica.uncached(request)
        if not hit and request.path:
            if request.path[0] in first:
                later.add(request.index)
            first.add(request.path[0])
    return hits, later


BASELINES: dict[str, Callable[[], Queue]] = {
    "fcfs": FirstCome,
    "lpm": LongestPrefix,
    "hrrn": HighestRatio,
}
