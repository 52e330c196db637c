"""The request router on Serve's own routing loop, with replicas that only report their queues."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest_asyncio
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    RequestMetadata,
)
from ray.serve.request_router import PendingRequest

from encoders.ring import Ring
from encoders.router import DigestRouter, find_digest

DEPLOYMENT = DeploymentID("encoder", "app")
DIGESTS = [f"{index:064x}" for index in range(200)]


@dataclass(eq=False)
class Replica:
    """What the loop asks of a `RunningReplica`."""

    name: str
    queued: int = 0
    max_ongoing_requests: int = 8
    replica_id: ReplicaID = field(init=False)
    node_id = "node"
    availability_zone = None
    multiplexed_model_ids: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.replica_id = ReplicaID(self.name, DEPLOYMENT)

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return self.queued


def call(*args: Any, request: str = "request") -> PendingRequest:
    metadata = RequestMetadata(request_id=request, internal_request_id=request)
    return PendingRequest(args=list(args), kwargs={}, metadata=metadata)


@pytest_asyncio.fixture
async def router() -> DigestRouter:
    router = DigestRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, initial_backoff_s=0.001)
    router.initialize_state()
    router.update_replicas([Replica(name) for name in "abcd"])
    return router


async def route(router: DigestRouter, pending: PendingRequest) -> str:
    replica = await asyncio.wait_for(router._choose_replica_for_request(pending), 5)
    return str(replica.replica_id.unique_id)


def test_digests_are_found_among_the_arguments() -> None:
    assert find_digest([b"data", DIGESTS[3], {}]) == DIGESTS[3]
    assert find_digest(["x" * 64, "a" * 63, b"a" * 64, 5]) is None


async def test_a_digest_goes_where_the_ring_says(router: DigestRouter) -> None:
    ring = Ring("abcd")
    for digest in DIGESTS[:30]:
        assert await route(router, call(b"data", digest)) == ring.order(digest)[0]


async def test_calls_of_one_request_do_not_mix(router: DigestRouter) -> None:
    ring = Ring("abcd")
    calls = [route(router, call(b"data", digest)) for digest in DIGESTS[:60]]
    found = await asyncio.gather(*calls)
    assert found == [ring.order(digest)[0] for digest in DIGESTS[:60]]


async def test_a_full_replica_is_passed_over_and_all_full_ones_are_waited_for(
    router: DigestRouter,
) -> None:
    digest = DIGESTS[0]
    order = Ring("abcd").order(digest)
    replicas = {name: Replica(name) for name in "abcd"}
    router.update_replicas(list(replicas.values()))
    replicas[order[0]].queued = 8
    assert await route(router, call(digest)) == order[1]
    for replica in replicas.values():
        replica.queued = 8
    waiting = asyncio.create_task(route(router, call(digest)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    replicas[order[2]].queued = 0
    assert await waiting == order[2]


async def test_every_replica_stays_a_candidate(router: DigestRouter) -> None:
    replicas = [Replica(name) for name in "abcd"]
    for _ in range(500):
        ranks = await router.choose_replicas(replicas, call(DIGESTS[0]))
        assert sorted(replica.name for (replica,) in ranks) == list("abcd")
        router._recent.add(ranks[0][0].name)
    # One digest alone, far over the slack: spread evenly.
    assert max(router._recent.loads().values()) <= 0.31 * sum(router._recent.loads().values())


async def test_calls_without_a_digest_go_to_the_shortest_queue(router: DigestRouter) -> None:
    replicas = [Replica("a", queued=3), Replica("b", queued=1), Replica("c", queued=2)]
    router.update_replicas(replicas)
    assert await route(router, call(b"samples", 8000)) == "b"


async def test_who_leaves_and_who_comes(router: DigestRouter) -> None:
    before = {digest: await route(router, call(digest)) for digest in DIGESTS[:40]}
    router.on_replica_actor_died(ReplicaID("b", DEPLOYMENT))
    for digest, name in before.items():
        found = await route(router, call(digest))
        assert found != "b"
        assert found == name or name == "b" or router._recent.loads()[name] > 30
    router.update_replicas([])
    waiting = asyncio.create_task(route(router, call(DIGESTS[0])))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    router.update_replicas([Replica("new")])
    assert await waiting == "new"


async def test_a_cancelled_call_is_passed_over(router: DigestRouter) -> None:
    router.update_replicas([Replica("a", queued=8)])
    first = asyncio.create_task(route(router, call(DIGESTS[0])))
    second = asyncio.create_task(route(router, call(DIGESTS[1])))
    await asyncio.sleep(0.02)
    first.cancel()
    router.update_replicas([Replica("b")])
    assert await second == "b"
    assert first.cancelled()
