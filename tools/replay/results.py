"""What happened to every request, and the figures made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tools.replay.request import Request
from tools.replay.workload import Workload

if TYPE_CHECKING:
    from tools.replay.group import Group
    from tools.replay.routers import Fleet


class Results:
    """Arrays ``[n]`` by request: ``start``, ``first`` and ``done`` in seconds (NaN until then),
    tokens ``hit`` and of them from ``host`` and ``store``, and the ``replica``. By replica:
    tokens ``computed``, and ``busy_s`` and ``prefill_s`` of its group.
    """

    def __init__(
        self,
        workload: Workload,
        replicas: int,
        fleet: Fleet,
        fixed_s: float,
        on_first_token: Callable[[Request], None],
    ) -> None:
        count = len(workload)
        self.workload = workload
        self.fixed_s = fixed_s
        self.start = np.full(count, np.nan)
        self.first = np.full(count, np.nan)
        self.done = np.full(count, np.nan)
        self.hit = np.zeros(count, np.int64)
        self.host = np.zeros(count, np.int64)
        self.store = np.zeros(count, np.int64)
        self.replica = np.full(count, -1, np.int64)
        self.computed_by = np.zeros(replicas, np.int64)
        self.busy_s = np.zeros(replicas)
        self.prefill_s = np.zeros(replicas)
        self._fleet = fleet
        self._on_first_token = on_first_token
        self._sent = 0
        self._finished = 0

    def routed(self, request: Request, replica: int) -> None:
        """A request was sent to ``replica``; the router expects it to compute ``expected``."""
        self.replica[request.index] = replica
        self._sent += 1
        self._fleet.ongoing[replica] += 1
        self._fleet.loads[replica] += request.expected

    def started(self, request: Request, now: float, host: int, store: int) -> None:
        i = request.index
        self.start[i] = now
        self.hit[i] = request.hit
        self.host[i] = min(host, request.hit)
        self.store[i] = min(store, request.hit)
        # From here on what is really uncached counts.
        uncached = request.tokens - request.hit
        self._fleet.loads[self.replica[i]] += uncached - request.expected
        request.expected = uncached

    def computed(self, request: Request, replica: int, tokens: int) -> None:
        self.computed_by[replica] += tokens
        self._fleet.loads[replica] -= tokens

    def first_token(self, request: Request, now: float) -> None:
        self.first[request.index] = now + self.fixed_s
        self._on_first_token(request)

    def finished(self, request: Request, replica: int, now: float) -> None:
        self.done[request.index] = now + self.fixed_s
        self._finished += 1
        self._fleet.ongoing[replica] -= 1

    def close(self, groups: Sequence[Group]) -> None:
        """Collect what groups counted."""
        for group in groups:
            for rank in group.ranks:
                self.busy_s[rank.index] = group.busy_s
                self.prefill_s[rank.index] = group.prefill_s

    def check(self, inside: int) -> None:
        """Raises AssertionError when requests or tokens do not add up; ``inside`` are in replicas
        now."""
        assert self._sent == self._finished + inside, (
            f"{self._sent} requests sent, {self._finished} finished and {inside} inside"
        )
        started = ~np.isnan(self.start)
        first = ~np.isnan(self.first)
        tokens = self.workload.input_tokens
        assert bool(np.all(self.hit[started] < tokens[started])), "a hit covers a whole prompt"
        needed = int((tokens - self.hit)[first].sum())
        possible = int((tokens - self.hit)[started].sum())
        assert needed <= int(self.computed_by.sum()) <= possible, "tokens computed do not add up"
        order = self.workload.arrival[first] <= self.start[first]
        assert bool(np.all(order)), "a request started before it arrived"
        assert bool(np.all(self.start[first] <= self.first[first])), "a token before the start"
        ongoing = sum(self._fleet.ongoing)
        assert ongoing == inside, f"{ongoing} requests are counted as ongoing, {inside} are"
        if not inside:
            assert abs(float(self._fleet.loads.sum())) < 1e-6, "load remains without requests"

    @property
    def ttft(self) -> NDArray[np.float64]:
        """Seconds from arrival to the first token, ``[n]``."""
        return self.first - self.workload.arrival

    @property
    def per_token(self) -> NDArray[np.float64]:
        """Seconds per output token after the first, ``[n]``; 0 for single tokens."""
        after = np.maximum(1, self.workload.output_tokens - 1)
        return (self.done - self.first) / after

    @property
    def hit_rate(self) -> float:
        """Share of input tokens that were not computed."""
        return float(self.hit.sum() / self.workload.input_tokens.sum())

    @property
    def makespan(self) -> float:
        """Seconds from the first arrival to the last first token."""
        return float(np.nanmax(self.first) - self.workload.arrival.min())

    @property
    def input_throughput(self) -> float:
        """Input tokens per second over the makespan, hits included."""
        return float(self.workload.input_tokens.sum() / self.makespan)

    @property
    def imbalance(self) -> float:
        """Tokens computed by the busiest replica over the mean."""
        mean = self.computed_by.mean()
        return float(self.computed_by.max() / mean) if mean else 1.0

    @property
    def utilisation(self) -> float:
        """Mean share of the makespan that groups spent in prefill passes."""
        return float(self.prefill_s.mean() / self.makespan)

    def percentiles(
        self, values: NDArray[np.float64], points: Sequence[float], which: NDArray[np.bool_]
    ) -> list[float]:
        """Percentiles over the requests that ``which`` selects; NaN without any."""
        chosen = values[which]
        return np.percentile(chosen, points).tolist() if len(chosen) else [np.nan] * len(points)

    def row(self) -> dict[str, float]:
        """The figures that reports print."""
        everyone = np.ones(len(self.workload), np.bool_)
        p50, p90, p99 = self.percentiles(self.ttft, (50, 90, 99), everyone)
        return {
            "hit rate": self.hit_rate,
            "TTFT p50 s": p50,
            "TTFT p90 s": p90,
            "TTFT p99 s": p99,
            "ms/token p90": 1e3 * self.percentiles(self.per_token, (90,), everyone)[0],
            "input tok/s": self.input_throughput,
            "imbalance": self.imbalance,
            "prefill busy": self.utilisation,
        }
