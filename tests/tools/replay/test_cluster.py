"""The simulator against answers worked out by hand, and its invariants on random workloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.tools.replay.fleets import BLOCK, COST, conversations, setup, workload
from tools.replay.cluster import Cluster, Setup
from tools.replay.cost import CostModel
from tools.replay.geometry import V25, Pools
from tools.replay.production import ComputeAware, KvAffinity
from tools.replay.queues import BASELINES as QUEUES
from tools.replay.queues import FirstCome
from tools.replay.replica import Limits, Queue
from tools.replay.results import Results
from tools.replay.routers import BASELINES, PowerOfTwo, RoundRobin, RouterFactory
from tools.replay.workload import Workload

ROUTERS: dict[str, RouterFactory] = BASELINES | {"kv-affinity": lambda f: KvAffinity(f, BLOCK)}
ALL_QUEUES: dict[str, Callable[[], Queue]] = QUEUES | {"compute-aware": ComputeAware}


def run(
    fleet: Setup,
    requests: Workload,
    router: RouterFactory = RoundRobin,
    queue: Callable[[], Queue] = FirstCome,
) -> Results:
    return Cluster(fleet, requests, router, queue, check_every=1).run()


def test_one_request_takes_what_the_cost_model_says() -> None:
    results = run(setup(), workload([list(range(10))], output=[5]))
    tokens = 10 * BLOCK
    first = COST.request_s(tokens, 0, 64)
    assert results.ttft[0] == pytest.approx(first)
    # Three chunks of 64, 64 and 32 tokens, after 0, 64 and 128 others.
    by_hand = 3 * 0.01 + 0.160 + 1e-6 * (64 * 32 + 64 * (64 + 32) + 32 * (128 + 16))
    assert first == pytest.approx(by_hand)
    decode = sum(COST.decode_s(1, tokens + i) for i in range(4))
    assert results.done[0] == pytest.approx(first + decode)


def test_decode_shares_passes_and_waits_for_prefill() -> None:
    results = run(setup(), workload([[1], [2]], [0.0, 0.001], [3, 3]))
    one = COST.request_s(BLOCK, 0, 64)
    # The second is prefilled before the first decodes; then both decode together.
    assert results.first.tolist() == pytest.approx([one, 2 * one])
    both = COST.decode_s(2, 2 * BLOCK) + COST.decode_s(2, 2 * BLOCK + 2)
    assert results.done.tolist() == pytest.approx([2 * one + both] * 2)


def test_an_arrival_ends_a_run_of_decode_passes_after_the_one_in_progress() -> None:
    first = COST.request_s(BLOCK, 0, 64)
    passes = [COST.decode_s(1, BLOCK + i) for i in range(9)]
    during_third = first + passes[0] + passes[1] + passes[2] / 2
    results = run(setup(), workload([[1], [2]], [0.0, during_third], [10, 1]))
    start = first + sum(passes[:3])
    assert results.start[1] == pytest.approx(start)
    assert results.first[1] == pytest.approx(start + first)
    assert results.done[0] == pytest.approx(first + sum(passes) + first)


def test_a_hit_is_not_computed_and_one_token_always_is() -> None:
    results = run(setup(), workload([[1, 2], [1, 2], [1, 3]], [0.0, 10.0, 20.0]))
    assert results.hit.tolist() == [0, 2 * BLOCK - 1, BLOCK]
    assert results.ttft[1] == pytest.approx(COST.request_s(2 * BLOCK, 2 * BLOCK - 1, 64))
    assert results.computed_by.tolist() == [2 * BLOCK + 1 + BLOCK]


def test_unbounded_cache_on_one_replica_reaches_the_bound_of_the_trace() -> None:
    requests = conversations(12, 6, seed=1, rate=0.2)
    results = run(setup(), requests)
    assert results.hit_rate == pytest.approx(requests.infinite_hits())
    # Under a window, a prefix is a hit only where one ended before.
    windowed = run(setup(geometry=V25, pools=Pools(10**7, 10**6)), requests)
    assert windowed.hit_rate == pytest.approx(requests.windowed_hits(64))
    assert 0.5 * results.hit_rate < windowed.hit_rate < results.hit_rate


def test_queue_mean_of_random_arrivals_is_that_of_theory() -> None:
    rng = np.random.default_rng(3)
    count, service, load = 20_000, 0.01 + 0.001 * BLOCK, 0.7
    arrival = np.cumsum(rng.exponential(service / load, count)).tolist()
    cost = replace(COST, pair_s=0.0)
    # One request a pass: a chunk is one request long.
    fleet = setup(limits=Limits(chunk=BLOCK), cost=cost)
    requests = workload([[i] for i in range(count)], arrival)
    results = Cluster(fleet, requests, RoundRobin, FirstCome).run()
    # M/D/1: mean wait = load * service / (2 * (1 - load)).
    waited = float((results.start - requests.arrival).mean())
    assert waited == pytest.approx(load * service / (2 * (1 - load)), rel=0.08)


@pytest.mark.parametrize("router", list(ROUTERS))
@pytest.mark.parametrize("windowed", [False, True])
def test_nothing_is_lost_when_memory_is_short(router: str, windowed: bool) -> None:
    requests = conversations(10, 5, seed=2)
    pools = Pools(700, 12, host_bytes=3e8, store_bytes=6e8)
    fleet = setup(3, V25 if windowed else None, pools, Limits(chunk=64, max_running=5))
    results = run(fleet, requests, ROUTERS[router])
    assert not np.isnan(results.done).any()
    assert int(results.computed_by.sum()) == int((requests.input_tokens - results.hit).sum())
    assert 0 < results.hit_rate <= requests.infinite_hits()


@pytest.mark.parametrize("queue", list(ALL_QUEUES))
def test_every_order_serves_everybody_in_lock_step_groups(queue: str) -> None:
    requests = conversations(8, 6, seed=4, rate=60.0, most=12)
    fleet = setup(2, limits=Limits(chunk=64, max_running=4), cost=replace(COST, ranks=2))
    results = run(fleet, requests, PowerOfTwo, ALL_QUEUES[queue])
    assert not np.isnan(results.done).any()
    assert set(results.replica.tolist()) == {0, 1, 2, 3}


def test_ranks_of_a_group_wait_for_the_slowest() -> None:
    cost = replace(COST, ranks=2)
    long, short = list(range(100, 108)), [1]
    alone = run(setup(cost=cost), workload([short]))
    # The long one is there first and takes two chunks; the short one joins the second.
    together = run(setup(cost=cost), workload([long, short]))
    assert together.first[1] == pytest.approx(together.first[0])
    assert together.first[1] > 2 * alone.first[0]


def test_runs_are_the_same_for_the_same_seed() -> None:
    requests = conversations(10, 4, seed=5)
    for router in ROUTERS.values():
        first, second = run(setup(3), requests, router), run(setup(3), requests, router)
        assert first.first.tolist() == second.first.tolist()
        assert first.replica.tolist() == second.replica.tolist()


def test_tiers_hold_what_the_device_cannot_and_take_time_to_load() -> None:
    geometry = V25.without_window()
    block = geometry.full_bytes * BLOCK
    paths = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 2, 3]]
    requests = workload(paths, [0.0, 10.0, 20.0, 30.0])
    slow = replace(COST, host_bytes_s=2 * block / 1.5, store_bytes_s=block, load_overlaps=False)
    none = run(setup(pools=Pools(4 * BLOCK, 0), cost=slow), requests)
    host = run(setup(pools=Pools(4 * BLOCK, 0, 9 * block), cost=slow), requests)
    store = run(setup(pools=Pools(4 * BLOCK, 0, 0.0, 9 * block), cost=slow), requests)
    assert none.hit[3] == 0
    assert host.hit[3] == store.hit[3] == 3 * BLOCK - 1
    assert (int(host.host[3]), int(store.store[3])) == (3 * BLOCK - 1, 3 * BLOCK - 1)
    compute = COST.request_s(3 * BLOCK, 3 * BLOCK - 1, 64)
    assert host.ttft[3] == pytest.approx(compute + 3 * 0.75)
    assert store.ttft[3] == pytest.approx(compute + 3.0)


def test_a_store_serves_all_replicas() -> None:
    block = V25.without_window().full_bytes * BLOCK
    requests = workload([[1, 2, 3], [1, 2, 3]], [0.0, 10.0])
    alone = run(setup(2), requests)
    shared = run(setup(2, pools=Pools(1000, 0, 0.0, 9 * block)), requests)
    assert alone.hit.tolist() == [0, 0]
    assert shared.hit.tolist() == [0, 3 * BLOCK - 1]


def test_windows_follow_the_engine() -> None:
    """The first time a prefix is shared inside a longer one it is a miss, then it is known."""
    fleet = setup(geometry=V25, pools=Pools(10**6, 10**4))
    requests = workload([[1, 2, 3], [1, 2, 4], [1, 2, 5], [1, 2, 3, 6]], [0.0, 10.0, 20.0, 30.0])
    assert run(fleet, requests).hit.tolist() == [0, 0, 2 * BLOCK, 3 * BLOCK]
    # Kept densely, it is known at once.
    dense = setup(geometry=V25, pools=Pools(10**6, 10**4), limits=Limits(64, dense_every=BLOCK))
    found = run(dense, requests)
    assert found.hit.tolist()[:2] == [0, 2 * BLOCK]
    assert found.hit_rate == pytest.approx(requests.windowed_hits(64, dense.limits.tails))
    assert found.hit_rate > requests.windowed_hits(64)


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit a pool of 32"):
        run(setup(pools=Pools(32, 0)), workload([[1, 2, 3]]))


def test_a_router_that_names_no_replica_is_an_error() -> None:
    class Lost(RoundRobin):
        def choose(self, request: object, now: float) -> int:
            return 7

    with pytest.raises(ValueError, match="chose replica 7 of 1"):
        run(setup(), workload([[1]]), Lost)


def test_fixed_time_is_added_to_every_token() -> None:
    cost: CostModel = replace(COST, fixed_s=0.5)
    results = run(setup(cost=cost), workload([[1]]))
    assert results.ttft[0] == pytest.approx(0.5 + COST.request_s(BLOCK, 0, 64))


def test_requests_pass_the_gateway_one_after_the_other() -> None:
    cost: CostModel = replace(COST, gateway_s=0.5)
    requests = workload([[1], [2], [3], [4]], [0.0, 0.0, 0.25, 10.0])
    results = run(setup(groups=4, cost=cost), requests)
    one = COST.request_s(BLOCK, 0, 64)
    assert results.ttft.tolist() == pytest.approx([0.5 + one, 1 + one, 1.25 + one, 0.5 + one])


def test_a_pass_takes_longer_while_a_neighbour_on_the_host_works() -> None:
    shared = replace(COST, groups_per_host=2, crowding=1.5)
    one = COST.request_s(BLOCK, 0, 64)
    # Round robin: groups 0 and 1 are one host, group 2 has one of its own.
    requests = workload([[1], [2], [3], [4]], [0.0, 0.001, 0.001, 10.0])
    results = run(setup(groups=3, cost=shared), requests)
    assert results.ttft.tolist() == pytest.approx([one, 1.5 * one, one, one])
    # A run of decode passes is no different.
    results = run(setup(groups=2, cost=shared), workload([[1], [2]], [0.0, 0.001], [4, 4]))
    passes = sum(COST.decode_s(1, BLOCK + i) for i in range(3))
    assert results.done[1] - results.first[1] == pytest.approx(1.5 * passes)
