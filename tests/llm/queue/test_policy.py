"""The waiting queue against a sorted list, and the bounds that its documentation states."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.queue.policy import QueuePolicy, WaitingQueue

POLICY = QueuePolicy(penalty=1.0, head_start=5000.0)


class NaiveQueue:
    """Recomputes "uncached - penalty * waited - tier * head start" of everybody on every look."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy, self.clock, self.count = policy, 0, 0
        self.items: dict[int, list] = {}

    def join(self, item: int, uncached: int, tier: int) -> None:
        if item not in self.items:
            self.items[item] = [uncached, self.clock, tier, self.count, None]
            self.count += 1

    def sorted(self, waiting: list[int]) -> list[int]:
        def key(item: int) -> tuple[float, int]:
            uncached, joined, tier, order, frozen = self.items[item]
            if frozen is not None:
                uncached = frozen
            waited = self.clock - joined
            rank = uncached - self.policy.penalty * (waited + tier * self.policy.head_start)
            return rank, order

        return sorted(waiting, key=key)


events = st.lists(
    st.tuples(
        st.sampled_from(("join", "join", "start", "update", "preempt", "done")),
        st.integers(0, 9),
        st.integers(0, 50),
        st.integers(-1, 1),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(events, st.sampled_from((0.5, 1.0, 2.0)))
def test_agrees_with_the_sorted_list(history: list, penalty: float) -> None:
    policy = QueuePolicy(penalty, 64.0)
    queue: WaitingQueue[int] = WaitingQueue(policy)
    naive = NaiveQueue(policy)
    waiting: list[int] = []
    running: list[int] = []
    for kind, item, uncached, tier in history:
        if kind == "join" and item not in waiting and item not in running:
            queue.join(item, uncached, tier)
            naive.join(item, uncached, tier)
            waiting.append(item)
        elif kind == "update" and item in waiting:
            queue.update(item, uncached)
            naive.items[item][0] = uncached
        elif kind == "start" and waiting:
            first = queue.sorted(waiting)[0]
            waiting.remove(first)
            running.append(first)
            queue.started(first)
            if naive.items[first][4] is None:
                naive.items[first][4] = naive.items[first][0]
            queue.advance(uncached)
            naive.clock += uncached
        elif kind == "preempt" and running:
            back = running.pop()
            queue.join(back, 10_000, tier)
            naive.join(back, 10_000, tier)
            waiting.append(back)
        elif kind == "done" and running:
            gone = running.pop(0)
            queue.done(gone)
            naive.items.pop(gone)
        queue.check()
        assert queue.sorted(waiting) == naive.sorted(waiting)


def test_fewest_uncached_tokens_first_and_equal_work_in_order_of_arrival() -> None:
    queue: WaitingQueue[str] = WaitingQueue(POLICY)
    for item, uncached in (("long", 900), ("first", 100), ("second", 100), ("short", 20)):
        queue.join(item, uncached)
    assert queue.sorted(["second", "long", "short", "first"]) == [
        *("short", "first", "second", "long")
    ]
    uniform: WaitingQueue[int] = WaitingQueue(POLICY)
    for item in range(50):
        uniform.join(item, 700)
        uniform.advance(random.Random(item).randrange(2000))
    assert uniform.sorted(random.Random(1).sample(range(50), 50)) == list(range(50))


def serve(queue: WaitingQueue[int], waiting: list[int], sizes: dict[int, int]) -> int:
    """One request is prefilled and leaves."""
    first = queue.sorted(waiting)[0]
    waiting.remove(first)
    queue.started(first)
    queue.advance(sizes[first])
    queue.done(first)
    return first


@pytest.mark.parametrize("load", [0.8, 1.0, 1.25])
@pytest.mark.parametrize("penalty", [0.5, 1.0, 4.0])
def test_case_104_a_cold_request_starts_within_the_bound(load: float, penalty: float) -> None:
    policy = QueuePolicy(penalty)
    queue: WaitingQueue[int] = WaitingQueue(policy)
    sizes = {0: 20_000}
    waiting, arrived = [], 0.0
    for item in range(1, 11):
        sizes[item] = 200
        queue.join(item, 200)
        waiting.append(item)
    queue.join(0, 20_000)
    waiting.append(0)
    backlog = 10 * 200
    bound = policy.bound(20_000, backlog, load, smallest=200)
    while True:
        # Hot requests join for ever, `load` times as fast as they are served.
        before = queue.clock
        served = serve(queue, waiting, sizes)
        if served == 0:
            break
        arrived += load * (queue.clock - before) / 200
        while arrived >= 1:
            arrived -= 1
            item = len(sizes)
            sizes[item] = 200
            queue.join(item, 200)
            waiting.append(item)
        assert queue.clock <= bound + 400, "the cold request starves"
        queue.check()
    # It waited, as the policy wants, but not longer than stated.
    assert backlog <= before <= bound + 400


def test_case_104_preempted_work_keeps_its_place() -> None:
    queue: WaitingQueue[str] = WaitingQueue(POLICY)
    queue.join("first", 100)
    queue.join("second", 120)
    queue.started("first")
    queue.advance(100)
    queue.join("third", 5)
    # Its KV was dropped: by its work alone it would now be the last.
    queue.join("first", 4000)
    queue.update("first", 4000)
    assert queue.sorted(["third", "second", "first"]) == ["first", "third", "second"]


def test_tiers_precede_and_never_starve_the_lower_ones() -> None:
    queue: WaitingQueue[str] = WaitingQueue(POLICY)
    queue.join("flex", 100, -1)
    queue.join("default", 3000, 0)
    queue.join("priority", 4900, 1)
    assert queue.sorted(["flex", "default", "priority"]) == ["priority", "default", "flex"]
    # 5000 tokens a tier is the head start: after that, waiting counts more.
    queue.advance(10_000)
    queue.join("late", 10, 1)
    assert queue.sorted(["flex", "late"]) == ["late", "flex"]
    queue.advance(5000)
    queue.join("later", 120, 1)
    assert queue.sorted(["flex", "later"]) == ["flex", "later"]
    assert POLICY.overtaking_window(100, 10, tiers_above=2) == 10_090


def test_what_left_is_forgotten() -> None:
    queue: WaitingQueue[int] = WaitingQueue(POLICY)
    for item in range(5):
        queue.join(item, item)
    queue.keep([1, 3])
    queue.done(3)
    queue.done(77)
    assert len(queue) == 1
    assert 1 in queue
    assert 3 not in queue
    queue.check()


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="penalty must be above 0, got 0"):
        QueuePolicy(penalty=0)
    with pytest.raises(ValueError, match="head_start must be at least 0"):
        QueuePolicy(head_start=-1)
