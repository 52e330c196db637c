"""Scores, ties, overload and the loads of one or several routers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.router.loads import HALF_LIFE_S, Loads
from llm.router.policy import (
    RoutingPolicy,
    choose,
    lowest,
    overloaded,
    rank,
    scores,
    tie_numbers,
)
from llm.router.slots import Slots

POLICY = RoutingPolicy(weight=2.0, load_tokens=4096.0, overload_factor=1.5, overload_tokens=1000.0)


def naive_order(
    policy: RoutingPolicy,
    tokens: int,
    matched: list[int],
    loads: list[float],
    recent: list[float],
    ties: list[int],
) -> list[int]:
    """The definition, on a sorted list."""
    mean = sum(loads) / len(loads)
    limit = max(policy.overload_tokens, policy.overload_factor * mean)
    unit = max(policy.load_tokens, mean)

    def key(i: int) -> tuple[bool, float, float, float, int]:
        score = policy.weight * (matched[i] / tokens) - loads[i] / unit
        return loads[i] > limit, -score, loads[i], recent[i], ties[i]

    return sorted(range(len(loads)), key=key)


# Whole numbers, a prompt and a unit of load of powers of two, and no mean above that unit: sums in
# floating point are then exact.
replicas = st.lists(
    st.tuples(
        st.integers(0, 4).map(lambda n: n * 256),
        st.integers(0, 8).map(lambda n: n * 512.0),
        st.integers(0, 2).map(float),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(replicas, st.integers(1, 14), st.integers(0, 2**64 - 1))
def test_rank_agrees_with_the_sorted_list(
    state: list[tuple[int, float, float]], first: int, digest: int
) -> None:
    matched, loads, recent = (list(column) for column in zip(*state, strict=True))
    ties = tie_numbers(list(range(1, len(state) + 1)), digest)
    found = rank(POLICY, 1024, matched, np.array(loads), ties, first, np.array(recent))
    expected = naive_order(POLICY, 1024, matched, loads, recent, [int(t) for t in ties])
    assert found == expected[:first]


@settings(max_examples=300, deadline=None)
@given(replicas, st.integers(1, 14))
def test_lowest_has_the_first_of_a_sorted_list_and_their_equals(
    state: list[tuple[int, float, float]], count: int
) -> None:
    keys = [np.array(column, np.float64) for column in zip(*state, strict=True)]
    rows = [tuple(row) for row in state]
    last = sorted(rows)[min(count, len(rows)) - 1]
    assert sorted(lowest(keys, count)) == [i for i, row in enumerate(rows) if row <= last]


def test_a_whole_match_outweighs_weight_times_the_unit_of_load() -> None:
    policy = RoutingPolicy(weight=3.0, load_tokens=1000.0, overload_tokens=1e9)
    for load, expected in ((2990.0, {"a"}), (3010.0, {"b", "c", "d"})):
        loads = {"a": load, "b": 0.0, "c": 0.0, "d": 0.0}
        assert choose(policy, 500, {"a": 500}, loads) in expected
    # Under pressure the mean is the unit: all are behind, so the prefix is worth more.
    pressed = {"a": 30_000.0, "b": 20_000.0, "c": 20_000.0}
    assert choose(policy, 500, {"a": 500}, pressed) == "a"
    score = scores(policy, 500, [500, 0, 0], np.array([30_000.0, 20_000.0, 20_000.0]))
    assert score[0] == pytest.approx(3 - 30 / (70 / 3))


def test_nothing_matched_goes_to_the_least_loaded() -> None:
    assert choose(POLICY, 500, {}, {"a": 30.0, "b": 10.0, "c": 20.0}) == "b"


def test_a_favourite_that_is_overloaded_is_passed_over() -> None:
    loads = {"a": 4000.0, "b": 100.0, "c": 100.0}
    long = 100_000
    assert choose(POLICY, long, {"a": 90_000, "b": 10_000}, loads) == "b"
    # A load below the floor is no overload, however far above the mean.
    assert choose(POLICY, long, {"a": 90_000}, {"a": 900.0, "b": 0.0, "c": 0.0}) == "a"


def test_never_everybody_is_overloaded_and_nobody_means_none() -> None:
    for loads in ([5000.0] * 4, [0.0, 9e9, 9e9], [1e12]):
        assert not overloaded(POLICY, np.array(loads)).all()
    assert choose(POLICY, 100, {"gone": 100}, {}) is None
    assert rank(POLICY, 100, [], np.zeros(0), np.zeros(0, np.uint64)) == []


def test_ties_are_the_same_everywhere_and_spread_new_prompts() -> None:
    names = [f"replica{i}" for i in range(4)]
    counts = dict.fromkeys(names, 0)
    for digest in range(0, 400 * 7919, 7919):
        one = choose(POLICY, 100, {}, dict.fromkeys(names, 0.0), digest)
        other = choose(POLICY, 100, {}, dict.fromkeys(reversed(names), 0.0), digest)
        assert one == other
        assert one is not None
        counts[one] += 1
    assert min(counts.values()) > 60


def test_weights_and_factors_are_checked() -> None:
    with pytest.raises(ValueError, match="weight must be at least 0"):
        RoutingPolicy(weight=-1)
    with pytest.raises(ValueError, match="load_tokens must be above 0"):
        RoutingPolicy(load_tokens=0)
    with pytest.raises(ValueError, match="overload_factor must be at least 1"):
        RoutingPolicy(overload_factor=0.9)


def loads_of(*names: str) -> Loads:
    loads = Loads(Slots())
    for name in names:
        loads.add_replica(name)
    return loads


def test_one_router_alone_is_exact() -> None:
    loads = loads_of("a", "b")
    loads.sent("a", "r1", 500, now=1.0)
    loads.sent("a", "r2", 300, now=2.0)
    loads.sent("b", "r3", 50, now=2.0)
    assert list(loads.values) == [800, 50]
    loads.prefilled("r1")
    loads.prefilled("r1")
    loads.prefilled("unknown")
    assert list(loads.values) == [300, 50]
    # A retry moves a request.
    loads.sent("b", "r2", 300, now=3.0)
    assert list(loads.values) == [0, 350]
    loads.check()


def test_recent_work_fades_and_a_replica_that_comes_back_has_none() -> None:
    loads = loads_of("a", "b")
    loads.sent("a", "r1", 1000, now=5.0)
    loads.prefilled("r1")
    loads.sent("b", "r2", 600, now=5.0 + HALF_LIFE_S)
    # After one half-life 1000 tokens weigh as 500 do now.
    assert loads.recent[1] / loads.recent[0] == pytest.approx(1.2)
    loads.sent("b", "r3", 8, now=5.0 + 200 * HALF_LIFE_S)
    assert loads.recent[1] == pytest.approx(8)
    assert loads.recent[0] < 1e-9
    loads.drop_replica("b")
    loads.add_replica("b")
    assert loads.recent[1] == 0


def test_reports_bring_routers_together() -> None:
    one, two = loads_of("a"), loads_of("a")
    one.sent("a", "r1", 500, now=1.0)
    two.sent("a", "r2", 300, now=1.5)
    for router in (one, two):
        router.reported("a", 800, measured_at=2.0)
        assert router.load("a") == 800
        router.check()
    two.sent("a", "r3", 40, now=2.5)
    assert (one.load("a"), two.load("a")) == (800, 840)
    one.prefilled("r1")
    assert one.load("a") == 300
    # An older report that arrives late changes nothing.
    one.reported("a", 5, measured_at=1.0)
    assert one.load("a") == 300
    for router in (one, two):
        router.reported("a", 340, measured_at=3.0)
        assert router.load("a") == 340
        router.check()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("sent", "prefilled", "reported", "drop")),
            st.sampled_from("abc"),
            st.integers(0, 5),
            st.integers(0, 1000),
        ),
        max_size=40,
    )
)
def test_loads_stay_consistent(history: list[tuple[str, str, int, int]]) -> None:
    loads = loads_of(*"abc")
    for now, (kind, replica, request, tokens) in enumerate(history):
        if kind == "sent":
            loads.sent(replica, str(request), tokens, float(now))
        elif kind == "prefilled":
            loads.prefilled(str(request))
        elif kind == "reported":
            loads.reported(replica, float(tokens), now - 0.5)
        else:
            loads.drop_replica(replica)
            loads.add_replica(replica)
        loads.check()
        assert (loads.values >= 0).all()
