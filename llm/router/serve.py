"""Ray Serve's request router for the language model: each chat goes where its prefix is.

Written against Ray 2.60's router interface. The gateway passes the chat's `Route` as an argument;
calls without one go to the shortest queue. Replicas report through `record_routing_stats`,
which Serve's controller fetches and sends to every router, so any number of gateways converge.
A prompt counts as load of its replica from the moment it is chosen until its first token comes
(the gateway says so, `views.py`) or the call ends.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from llm.router.policy import RoutingPolicy
from llm.router.prompt import Route
from llm.router.report import Report
from llm.router.views import view_key, view_of

# Replicas in ranks of their own; all others share the last rank, where the shorter queue wins.
_RANKS = 4


class KvRouter(RequestRouter):
    """Ranks replicas by the policy over this process's view of the deployment.

    Options of `request_router_kwargs`: those of `RoutingPolicy`, max_pairs, and may_sleep: whether
    the deployment may have no replicas, so that a call wakes one. Without it, calls that wait when
    the last replica goes are refused with `DeploymentUnavailableError`: a new one takes longer than
    a client should wait without a word.
    """

    def initialize_state(
        self, max_pairs: int = 1 << 19, may_sleep: bool = False, **policy: float
    ) -> None:
        """Called by Serve with `request_router_kwargs`."""
        deployment = self._deployment_id
        key = view_key(deployment.app_name, deployment.name)
        self._view = view_of(key, RoutingPolicy(**policy), max_pairs)
        self._may_sleep = may_sleep
        self._routes: dict[tuple[str, str], str] = {}
        self._asking: WeakKeyDictionary[asyncio.Task[Any], PendingRequest] = WeakKeyDictionary()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve when replicas come, go, or report."""
        had = bool(self._replicas)
        super().update_replicas(replicas)
        self._view.set_replicas(replica.replica_id.unique_id for replica in replicas)
        for replica in replicas:
            report = Report.unpack(replica.routing_stats or {})
            if report is not None:
                self._view.report(replica.replica_id.unique_id, report)
        if had and not replicas:
            self._refuse_waiting()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Called by Serve when a call finds a replica dead, before the controller knows."""
        super().on_replica_actor_died(replica_id)
        self._view.set_replicas(known.unique_id for known in self._replicas)
        if not self._replicas:
            self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        if self._may_sleep:
            return
        for pending in [*self._pending_requests_to_fulfill]:
            if not pending.future.done():
                pending.future.set_exception(DeploymentUnavailableError(self._deployment_id))
                self._remove_pending_request_from_indices(pending)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are asked."""
        if pending_request is None:
            return [candidate_replicas]
        task = asyncio.current_task()
        if task is not None:
            self._asking[task] = pending_request
        # Between two rounds in which every replica refused.
        pending_request.routing_context.should_backoff = True
        route = route_of(pending_request)
        if route is None:
            return [candidate_replicas]
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ranked = self._view.rank(route.prompt, replicas.keys(), _RANKS)
        if ranked:
            # From now on, not from when it is sent: chats that arrive at once must not all go to
            # the replica that was the best for the first one.
            self._view.sent(ranked[0].name, route.id, route.prompt, time.time())
            pending_request.future.add_done_callback(partial(self._left, route.id))
        first = [replicas.pop(found.name) for found in ranked]
        return [*([replica] for replica in first), list(replicas.values())]

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: Any = None
    ) -> None:
        """Give the replica to the call it was chosen for (see `encoders.router`)."""
        task = asyncio.current_task()
        pending = self._asking.pop(task, None) if task is not None else None
        if pending is None or pending.future.done():
            return
        self._record_queue_wait_time(pending)
        pending.future.set_result(replica)
        self._remove_pending_request_from_indices(pending)
        route = route_of(pending)
        if route is not None:
            name = replica.replica_id.unique_id
            self._routes[name, pending.metadata.internal_request_id] = route.id
            self._view.sent(name, route.id, route.prompt, time.time())

    def _left(self, route: str, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            self._view.prefilled(route)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Serve once for every call that was sent, however it ended."""
        route = self._routes.pop((replica_id.unique_id, internal_request_id), None)
        if route is not None:
            self._view.prefilled(route, replica_id.unique_id)


def route_of(pending: PendingRequest) -> Route | None:
    """The route among the arguments of a call."""
    for argument in (*pending.args, *pending.kwargs.values()):
        if isinstance(argument, Route):
            return argument
    return None
