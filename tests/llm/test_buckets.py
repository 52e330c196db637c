"""Length buckets: classes, and where work goes when one is busy, idle or empty."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.buckets import BucketPolicy, BucketState

POLICY = BucketPolicy(bounds=(64, 256, 1024), busy_tokens=100, idle_tokens=10)


def states(*given: tuple[int, float]) -> list[BucketState]:
    return [BucketState(replicas, load) for replicas, load in given]


FREE = states((2, 0), (1, 0), (1, 0))


@pytest.mark.parametrize(
    ("uncached", "expected"),
    [(0, 0), (64, 0), (65, 1), (256, 1), (257, 2), (1024, 2), (5000, 2)],
)
def test_classes_by_uncached_work(uncached: int, expected: int) -> None:
    assert POLICY.classify(uncached) == expected
    assert POLICY.choose([uncached] * 3, FREE) == expected


def test_a_long_conversation_stays_where_its_prefix_is() -> None:
    assert POLICY.choose([20, 900, 900], FREE) == 0
    assert POLICY.choose([900, 30, 900], FREE) == 1


def test_a_busy_class_overflows_to_an_idle_longer_one() -> None:
    assert POLICY.choose([10] * 3, states((2, 300), (1, 5), (1, 0))) == 1
    assert POLICY.choose([10] * 3, states((2, 300), (1, 50), (1, 0))) == 2
    assert POLICY.choose([10] * 3, states((2, 300), (1, 50), (1, 50))) == 0
    assert POLICY.choose([10] * 3, states((2, 190), (1, 0), (1, 0))) == 0


def test_long_work_moves_down_only_when_allowed() -> None:
    busy = states((2, 0), (1, 0), (1, 500))
    assert POLICY.choose([900] * 3, busy) == 2
    down = BucketPolicy((64, 256, 1024), 100, 10, overflow_down=True)
    assert down.choose([900] * 3, busy) == 1


def test_nothing_waits_for_a_class_without_replicas() -> None:
    assert POLICY.choose([10] * 3, states((0, 0), (1, 50), (1, 0))) == 1
    assert POLICY.choose([10] * 3, states((0, 0), (1, 9e9), (1, 0))) == 2
    assert POLICY.choose([10] * 3, states((0, 0), (1, 9e9), (1, 90))) == 1
    assert POLICY.choose([900] * 3, states((1, 9e9), (0, 0), (0, 0))) == 0
    assert POLICY.choose([100] * 3, states((1, 0), (0, 0), (1, 0))) == 2
    assert POLICY.choose([100] * 3, states((0, 0), (0, 0), (0, 0))) is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 2000), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), min_size=3, max_size=3),
    st.booleans(),
)
def test_a_class_with_replicas_is_always_found(
    uncached: list[int], given: list[tuple[int, int]], down: bool
) -> None:
    now = states(*[(replicas, float(load)) for replicas, load in given])
    chosen = BucketPolicy((64, 256, 1024), 100, 10, down).choose(uncached, now)
    if any(state.replicas for state in now):
        assert chosen is not None
        assert now[chosen].replicas > 0
    else:
        assert chosen is None


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="at least one class"):
        BucketPolicy(bounds=())
    with pytest.raises(ValueError, match="bounds must ascend"):
        BucketPolicy(bounds=(64, 64))
    with pytest.raises(ValueError, match="idle_tokens must be from 0 to busy_tokens"):
        BucketPolicy(idle_tokens=1e9)
    with pytest.raises(ValueError, match="3 classes need as many estimates"):
        POLICY.choose([1], FREE)
