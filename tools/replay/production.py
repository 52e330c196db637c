"""The production router and queue driven by the virtual clock: their code, not a copy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from llm.buckets import BucketPolicy
from llm.queue.engine import EngineQueue
from llm.queue.policy import Place, QueuePolicy
from llm.router.index import MAX_PAIRS
from llm.router.policy import RoutingPolicy
from llm.router.prompt import Prompt
from llm.router.view import RouterView
from tools.replay.replica import Replica
from tools.replay.request import Request
from tools.replay.routers import Fleet


class KvAffinity:
    """The KV-affinity router of one gateway: ``llm.router.view.RouterView``, fed with what
    replicas report as changes. ``only``: the replicas that it routes to (all, by default)."""

    wants_reports = True

    def __init__(
        self,
        fleet: Fleet,
        block_tokens: int,
        policy: RoutingPolicy | None = None,
        max_pairs: int = MAX_PAIRS,
        only: range | None = None,
    ) -> None:
        self._fleet = fleet
        self._size = block_tokens
        self.view = RouterView(policy, max_pairs)
        self._names = {i: f"replica {i}" for i in only or range(len(fleet))}
        self._numbers = {name: i for i, name in self._names.items()}
        self.view.set_replicas(self._numbers)

    def choose(self, request: Request, now: float) -> int:
        return self.place(request, self.prompt(request), now)

    def prompt(self, request: Request) -> Prompt:
        """What the router sees of a request: its full blocks."""
        full = request.path[: request.tokens // self._size]
        return Prompt.uniform(full, self._size, request.tokens)

    def place(self, request: Request, prompt: Prompt, now: float) -> int:
        best = self.view.rank(prompt)[0]
        self.view.sent(best.name, str(request.index), prompt, now)
        request.expected = max(1, request.tokens - best.matched)
        return self._numbers[best.name]

    def first_token(self, request: Request) -> None:
        self.view.prefilled(str(request.index))

    def report(self, replica: Replica, now: float) -> None:
        changes = replica.changes
        assert changes is not None
        device, host = replica.device, replica.host
        here = [b for b in changes if b in device or (host is not None and b in host)]
        gone = [b for b in changes if b not in device and (host is None or b not in host)]
        load = float(self._fleet.loads[replica.index])
        name = self._names[replica.index]
        self.view.changed(name, now, load, here, _usable(replica, here), gone)


class Bucketed:
    """Length buckets: ``llm.buckets.BucketPolicy`` over a KV-affinity router for each class.

    ``replicas``: how many each class has, in the order of the fleet.
    """

    wants_reports = True

    def __init__(
        self, fleet: Fleet, block_tokens: int, policy: BucketPolicy, replicas: Sequence[int]
    ) -> None:
        if sum(replicas) != len(fleet):
            raise ValueError(f"classes have {sum(replicas)} replicas, the fleet {len(fleet)}")
        self._policy = policy
        starts = [sum(replicas[:k]) for k in range(len(replicas) + 1)]
        self._classes = [
            KvAffinity(fleet, block_tokens, only=range(first, last))
            for first, last in pairwise(starts)
        ]
        self._class_of = [k for k, count in enumerate(replicas) for _ in range(count)]

    def choose(self, request: Request, now: float) -> int:
        prompt = self._classes[0].prompt(request)
        uncached, states = zip(*(each.view.state(prompt) for each in self._classes), strict=True)
        chosen = self._policy.choose(uncached, states)
        assert chosen is not None
        return self._classes[chosen].place(request, prompt, now)

    def first_token(self, request: Request) -> None:
        for each in self._classes:
            each.first_token(request)

    def report(self, replica: Replica, now: float) -> None:
        self._classes[self._class_of[replica.index]].report(replica, now)


def _usable(replica: Replica, blocks: list[int]) -> list[int]:
    if not replica.geometry.window_layers:
        return blocks
    device, host = replica.device.windows, replica.host
    return [b for b in blocks if b in device or (host is not None and b in host.windows)]


class _Waiting:
    """A request as the engine's scheduler presents it to the queue policy."""

    __slots__ = (
        "arrival_processed_tokens",
        "compute_aware_place",
        "is_retracted",
        "num_matched_prefix_tokens",
        "origin_input_ids",
        "output_ids",
        "priority",
        "request",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.origin_input_ids = range(request.tokens)
        self.output_ids = ()
        self.num_matched_prefix_tokens = 0
        self.priority = request.tier
        self.is_retracted = False
        self.arrival_processed_tokens = request.joined
        self.compute_aware_place: Place | None = None


class ComputeAware:
    """The compute-aware queue of one engine: ``llm.queue.engine.EngineQueue``."""

    def __init__(self, policy: QueuePolicy | None = None, chunk_share: float = 0.5) -> None:
        self._engine = EngineQueue(policy or QueuePolicy(), chunk_share, self._match)
        self._waiting: list[_Waiting] = []
        self._known: dict[int, _Waiting] = {}
        self._replica: Replica | None = None

    def join(self, request: Request, replica: Replica) -> None:
        self._replica = replica
        waiting = _Waiting(request)
        self._known[request.index] = waiting
        self._waiting.append(waiting)

    def order(self, replica: Replica, now: float) -> list[Request]:
        self._sort(replica)
        return [waiting.request for waiting in self._waiting]

    def limit(self, partial: Request, replica: Replica, budget: int) -> int:
        if not self._waiting:
            return budget
        self._sort(replica)
        limit = self._engine.chunk_limit(self._known[partial.index], self._waiting, budget, 1)
        return budget if limit is None else limit

    def started(self, request: Request) -> None:
        self._waiting.remove(self._known[request.index])

    def prefilled(self, request: Request) -> None:
        del self._known[request.index]

    def _sort(self, replica: Replica) -> None:
        self._engine.sort(self._waiting, replica.processed)

    def _match(self, waiting: _Waiting) -> None:
        assert self._replica is not None
        request = waiting.request
        waiting.num_matched_prefix_tokens = request.tokens - self._replica.uncached(request)
