"""Ray Serve's request router for the encoders: each digest goes to the replica that knows it.

Written against Ray 2.60's router interface; its own consistent-hash router (ray/serve/experimental)
hashes a session instead of the content and ignores load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from encoders.ring import EPSILON, WINDOW, RecentLoad, Ring, bounded_order

_HEX = frozenset("0123456789abcdef")
# Calls in flight, or of late, below which a replica counts as idle: without it, two calls for one
# digest at once would part.
SLACK = 32


def find_digest(arguments: Iterable[Any]) -> str | None:
    """The first argument that is a digest (64 hex characters), or None."""
    for argument in arguments:
        if isinstance(argument, str) and len(argument) == 64 and _HEX.issuperset(argument):
            return argument
    return None


class DigestRouter(RequestRouter):
    """Calls with a digest follow a ring with bounded load, others go to the shortest queue.

    Two loads are bounded to (1 + `epsilon`) times the mean: the calls in flight on each replica and
    this router's recent calls to it (a fading count of `window` calls). A replica over a bound is
    asked after all others, never left out. As every router bounds its own calls, so is their sum.
    Options of `request_router_kwargs`: epsilon, slack, window.
    """

    def initialize_state(
        self, epsilon: float = EPSILON, slack: float = SLACK, window: float = WINDOW
    ) -> None:
        """Called by Serve with `request_router_kwargs`."""
        self._epsilon, self._slack = epsilon, slack
        self._ring = Ring(())
        self._recent = RecentLoad(window)
        self._asking: WeakKeyDictionary[asyncio.Task[Any], PendingRequest] = WeakKeyDictionary()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are asked, one in each rank."""
        if pending_request is None:
            return [candidate_replicas]
        task = asyncio.current_task()
        if task is not None:
            self._asking[task] = pending_request
        # Between two rounds in which every replica refused.
        pending_request.routing_context.should_backoff = True
        digest = _digest_of(pending_request)
        if digest is None:
            return [candidate_replicas]
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if replicas.keys() != set(self._ring.names):
            self._ring = Ring(replicas)
            self._recent.resize(replicas)
        queued = {
            name: self._replica_queue_len_cache.get(replica.replica_id) or 0
            for name, replica in replicas.items()
        }
        order = self._ring.order(digest)
        for loads in (self._recent.loads(), queued):
            order = bounded_order(order, loads, self._epsilon, self._slack)
        return [[replicas[name]] for name in order]

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: Any = None
    ) -> None:
        """Give the replica to the call it was chosen for.

        The base class finds the call by its request's id, which all calls of one gateway request
        share: the second would never be found (and Serve's FIFO fallback would mix them up).
        """
        task = asyncio.current_task()
        pending = self._asking.pop(task, None) if task is not None else None
        if pending is None or pending.future.done():
            return
        self._record_queue_wait_time(pending)
        pending.future.set_result(replica)
        self._remove_pending_request_from_indices(pending)
        if _digest_of(pending) is not None:
            self._recent.add(replica.replica_id.unique_id)


def _digest_of(pending: PendingRequest) -> str | None:
    return find_digest((*pending.args, *pending.kwargs.values()))
