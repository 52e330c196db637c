"""The event loop: arrivals are routed, groups of replicas work, the router hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from tools.replay.cost import CostModel
from tools.replay.geometry import Geometry, Pools
from tools.replay.group import Group
from tools.replay.replica import Limits, Queue, Replica
from tools.replay.request import Request
from tools.replay.results import Results
from tools.replay.routers import Fleet, Router
from tools.replay.tiers import store_tier
from tools.replay.workload import Workload


@dataclass(frozen=True)
class Setup:
    """A fleet: ``groups`` engines of ``cost.ranks`` ranks each, all alike. ``pools`` are those of
    one rank; its ``store_bytes`` is the whole fleet's. ``report_s``: the shortest time between two
    reports of one replica to the router."""

    geometry: Geometry
    cost: CostModel
    pools: Pools
    groups: int
    limits: Limits = field(default_factory=Limits)
    report_s: float = 1.0

    @property
    def replicas(self) -> int:
        return self.groups * self.cost.ranks


class Cluster:
    """A fleet of replicas that serves one workload, from its first arrival to its last answer."""

    def __init__(
        self,
        setup: Setup,
        workload: Workload,
        router: Callable[[Fleet], Router],
        queue: Callable[[], Queue],
        check_every: int = 0,
    ) -> None:
        self.setup = setup
        self.workload = workload
        self.check_every = check_every
        self.fleet = Fleet(setup.replicas)
        self.router = router(self.fleet)
        self.results = Results(
            workload, setup.replicas, self.fleet, setup.cost.fixed_s, self.router.first_token
        )
        ranks = setup.cost.ranks
        store = store_tier(setup.geometry, setup.pools, workload.block_tokens)
        self.replicas = [
            Replica(
                index,
                setup.geometry,
                setup.pools,
                workload.block_tokens,
                setup.limits,
                setup.cost.accept,
                queue(),
                self.results,
                store,
                self.router.wants_reports,
            )
            for index in range(setup.replicas)
        ]
        self.groups = [
            Group(self.replicas[g * ranks : (g + 1) * ranks], setup.cost)
            for g in range(setup.groups)
        ]
        share = setup.cost.groups_per_host
        if share > 1:
            for g, group in enumerate(self.groups):
                host = self.groups[g // share * share : (g // share + 1) * share]
                group.neighbours = [other for other in host if other is not group]
        self._reported = [-inf] * setup.replicas

    def run(self) -> Results:
        """Serve everything. Raises ValueError for a request that no replica can ever hold."""
        events: list[tuple[float, int, int, int]] = []
        ranks, groups, replicas = self.setup.cost.ranks, self.groups, self.replicas
        ready = _in_line(self.workload.ready.tolist(), self.setup.cost.gateway_s)
        upcoming = _requests(self.workload)
        count, sent, sequence = len(ready), 0, 0
        next_arrival = ready[0] if ready else inf
        steps = 0
        while True:
            now = events[0][0] if events else inf
            if next_arrival <= now:
                if next_arrival == inf:
                    break
                now = next_arrival
                request = next(upcoming)
                sent += 1
                next_arrival = ready[sent] if sent < count else inf
                index = self._route(request, now)
                replicas[index].enqueue(request, now)
                g = index // ranks
                group = groups[g]
                changed = group.start(now) if group.mode == 0 else group.interrupt(now)
            else:
                _, _, g, version = heappop(events)
                group = groups[g]
                if version != group.version:
                    continue
                group.finish(now)
                if self.router.wants_reports:
                    self._report(group, now)
                changed = group.start(now)
                steps += 1
                if self.check_every and steps % self.check_every == 0:
                    self.check()
            if changed:
                sequence += 1
                heappush(events, (group.end, sequence, g, group.version))
        self.results.close(self.groups)
        if self.check_every:
            self.check()
        return self.results

    def check(self) -> None:
        """Raises AssertionError when requests or tokens were lost or counted twice."""
        for replica in self.replicas:
            replica.check()
        inside = sum(len(r.waiting) + len(r.running) for r in self.replicas)
        self.results.check(inside)

    def _route(self, request: Request, now: float) -> int:
        index = self.router.choose(request, now)
        if not 0 <= index < len(self.replicas):
            raise ValueError(f"the router chose replica {index} of {len(self.replicas)}")
        self.results.routed(request, index)
        return index

    def _report(self, group: Group, now: float) -> None:
        """Tell the router what changed in the caches, not more often than set."""
        for replica in group.ranks:
            if now - self._reported[replica.index] >= self.setup.report_s:
                self._reported[replica.index] = now
                self.router.report(replica, now)
                if replica.changes:
                    replica.changes.clear()


def _in_line(arrivals: list[float], seconds: float) -> list[float]:
    """When requests leave a gateway that works so long on each, one after the other."""
    free, left = -inf, []
    for arrival in arrivals:
        free = max(arrival, free) + seconds
        left.append(free)
    return left


def _requests(workload: Workload) -> Iterator[Request]:
    arrival, tokens = workload.arrival.tolist(), workload.input_tokens.tolist()
    output, session = workload.output_tokens.tolist(), workload.session.tolist()
    offsets, blocks = workload.offsets.tolist(), workload.blocks
    for i in range(len(arrival)):
        path = blocks[offsets[i] : offsets[i + 1]].tolist()
        yield Request(i, arrival[i], path, tokens[i], output[i], session[i])
