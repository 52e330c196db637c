"""The router on Serve's own routing loop, with replicas that only report."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    RequestMetadata,
)
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.request_router import PendingRequest

from llm.router.prompt import Prompt, Route
from llm.router.report import Report
from llm.router.serve import KvRouter
from llm.router.views import find_view, view_key

DEPLOYMENT = DeploymentID("LLM", "app")
PROMPT = Prompt([1, 2, 3], [1000, 2000, 3000], 3100)


@dataclass(eq=False)
class Replica:
    """What the loop asks of a `RunningReplica`; a replica that hangs never answers."""

    name: str
    queued: int = 0
    hangs: bool = False
    routing_stats: Mapping[str, Any] = field(default_factory=dict)
    max_ongoing_requests: int = 8
    replica_id: ReplicaID = field(init=False)
    node_id = "node"
    availability_zone = None
    multiplexed_model_ids: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.replica_id = ReplicaID(self.name, DEPLOYMENT)

    async def get_queue_len(self, *, deadline_s: float) -> int:
        if self.hangs:
            await asyncio.sleep(60)
        return self.queued


def call(prompt: Prompt | None, name: str = "request") -> PendingRequest:
    metadata = RequestMetadata(request_id=name, internal_request_id=name)
    arguments: list[Any] = [{"model": "m"}, []]
    if prompt is not None:
        arguments.append(Route(f"route-{name}", prompt))
    return PendingRequest(args=arguments, kwargs={}, metadata=metadata)


def reporting(name: str, at: float, load: float, blocks: dict[int, bool], **more: Any) -> Replica:
    return Replica(name, routing_stats=Report(at, load, blocks).pack(), **more)


@pytest_asyncio.fixture
async def router() -> KvRouter:
    router = KvRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, initial_backoff_s=0.001)
    router.initialize_state(weight=2.0)
    router.update_replicas([Replica(name) for name in "abcd"])
    return router


async def route(router: KvRouter, pending: PendingRequest) -> str:
    replica = await asyncio.wait_for(router._choose_replica_for_request(pending), 5)
    return str(replica.replica_id.unique_id)


async def test_a_chat_goes_where_its_prefix_is_reported(router: KvRouter) -> None:
    held = {1: False, 2: True}
    router.update_replicas([Replica("a"), reporting("b", 1.0, 0.0, held), Replica("c")])
    assert await route(router, call(PROMPT)) == "b"
    view = find_view(view_key("app", "LLM"))
    assert view is not None
    assert view.loads() == {"a": 0, "b": 1100, "c": 0}
    router.on_request_completed(ReplicaID("b", DEPLOYMENT), "request")
    assert view.loads()["b"] == 0
    view.check()


async def test_calls_without_a_prompt_go_to_the_shortest_queue(router: KvRouter) -> None:
    router.update_replicas([Replica("a", queued=3), Replica("b", queued=1), Replica("c", queued=2)])
    assert await route(router, call(None)) == "b"


async def test_chats_at_once_do_not_mix_and_spread_by_their_load(router: KvRouter) -> None:
    prompts = [Prompt([100 + i], [500], 510) for i in range(40)]
    routes = [route(router, call(prompt, str(i))) for i, prompt in enumerate(prompts)]
    found = await asyncio.gather(*routes)
    assert {found.count(name) for name in "abcd"} == {10}


async def test_a_full_favourite_is_passed_over_and_all_full_ones_are_waited_for(
    router: KvRouter,
) -> None:
    full = [reporting("a", 1.0, 0.0, {1: True, 2: True, 3: True}, queued=8)]
    full += [Replica(name, queued=8) for name in "bc"]
    router.update_replicas([full[0], Replica("b"), full[2]])
    assert await route(router, call(PROMPT, "first")) == "b"
    router.on_replica_actor_died(ReplicaID("b", DEPLOYMENT))
    router.update_replicas(full)
    for replica in full:
        router._replica_queue_len_cache.update(replica.replica_id, 8)
    waiting = asyncio.create_task(route(router, call(PROMPT, "second")))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    full[2].queued = 0
    assert await waiting == "c"


async def test_dead_and_hanging_replicas_are_not_waited_for(router: KvRouter) -> None:
    favourite = reporting("a", 1.0, 0.0, {1: True, 2: True, 3: True}, hangs=True)
    router.update_replicas([favourite, Replica("b")])
    assert await route(router, call(PROMPT, "hangs")) == "b"
    router.update_replicas([reporting("a", 2.0, 0.0, {1: True}), Replica("b")])
    router.on_replica_actor_died(ReplicaID("a", DEPLOYMENT))
    assert await route(router, call(PROMPT, "died")) == "b"
    view = find_view(view_key("app", "LLM"))
    assert view is not None
    assert set(view.loads()) == {"b"}
    # Its restart has another name and is empty.
    router.update_replicas([Replica("a2"), Replica("b")])
    assert set(view.loads()) == {"a2", "b"}
    view.check()


@pytest.mark.parametrize("how", ["found dead", "removed"])
async def test_calls_that_wait_when_the_last_replica_goes_are_refused(how: str) -> None:
    for may_sleep in (False, True):
        router = KvRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, initial_backoff_s=0.001)
        router.initialize_state(may_sleep=may_sleep)
        early = asyncio.create_task(route(router, call(PROMPT, "early")))
        await asyncio.sleep(0.01)
        full = Replica("a", queued=8)
        router.update_replicas([full])
        waiting = [asyncio.create_task(route(router, call(PROMPT, str(i)))) for i in range(3)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in (early, *waiting))
        if how == "removed":
            router.update_replicas([])
        else:
            router.on_replica_actor_died(full.replica_id)
        await asyncio.sleep(0.05)
        if not may_sleep:
            refused = await asyncio.gather(early, *waiting, return_exceptions=True)
            assert {type(each) for each in refused} == {DeploymentUnavailableError}
        view = find_view(view_key("app", "LLM"))
        assert view is not None
        view.check()
        # The next one serves whoever waits or comes.
        router.update_replicas([Replica("b")])
        if may_sleep:
            assert set(await asyncio.gather(early, *waiting)) == {"b"}
        assert await route(router, call(PROMPT, "late")) == "b"
        assert router.num_pending_requests == 0


async def test_every_replica_stays_a_candidate(router: KvRouter) -> None:
    replicas = [Replica(f"r{i}") for i in range(20)]
    router.update_replicas(replicas)
    ranks = await router.choose_replicas(replicas, call(PROMPT))
    names = [replica.name for rank in ranks for replica in rank]
    assert sorted(names) == sorted(replica.name for replica in replicas)
    assert [len(rank) for rank in ranks] == [1, 1, 1, 1, 16]


def test_a_route_travels_to_the_replica() -> None:
    sent = Route("id", PROMPT)
    assert pickle.loads(pickle.dumps(sent)) == sent


async def test_case_89_a_storm_of_cancellations_leaves_the_router_serving(
    router: KvRouter,
) -> None:
    replicas = [Replica(name, queued=8) for name in "abcd"]
    router.update_replicas(replicas)
    for replica in replicas:
        router._replica_queue_len_cache.update(replica.replica_id, 8)
    waiting = [asyncio.create_task(route(router, call(PROMPT, f"storm{i}"))) for i in range(300)]
    await asyncio.sleep(0.05)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for replica in replicas:
        replica.queued = 0
        router._replica_queue_len_cache.update(replica.replica_id, 0)
    view = find_view(view_key("app", "LLM"))
    assert view is not None
    assert set(view.loads().values()) == {0.0}
    found = await asyncio.gather(*(route(router, call(None, f"after{i}")) for i in range(20)))
    assert set(found) <= set("abcd")
    view.check()


async def test_case_90_refused_and_retried_calls_leave_no_load(router: KvRouter) -> None:
    view = find_view(view_key("app", "LLM"))
    assert view is not None
    for number in range(50):
        pending = call(Prompt([number], [400], 410), f"r{number}")
        first = await route(router, pending)
        # The replica refuses it; Serve tells the end of that attempt before or after the next one.
        if number % 2:
            router.on_request_completed(ReplicaID(first, DEPLOYMENT), f"r{number}")
        pending.reset_future()
        second = await route(router, pending)
        router.on_request_completed(ReplicaID(first, DEPLOYMENT), f"r{number}")
        router.on_request_completed(ReplicaID(second, DEPLOYMENT), f"r{number}")
    assert set(view.loads().values()) == {0.0}
    assert not router._routes
    view.check()
