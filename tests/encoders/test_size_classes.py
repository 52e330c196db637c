"""The fair order: against a naive twin, and against the bound that its module proves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoders.size_classes import SizeClasses, class_bounds

BOUNDS = (2, 8, 32)
LIMIT = 128


class Twin:
    """The rule, written plainly: one list of all that waits, tags by class."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int, int]] = []  # item, work, class in order of arrival
        self.tags = dict.fromkeys(range(4), 0)
        self.last = 0

    def push(self, item: int, work: int) -> None:
        index = sum(work > bound for bound in BOUNDS)
        if not any(other == index for _, _, other in self.waiting):
            self.tags[index] = max(self.tags[index], self.last)
        self.waiting.append((item, work, index))

    def discard(self, item: int) -> None:
        self.waiting = [entry for entry in self.waiting if entry[0] != item]

    def take(self, max_work: int, max_items: int) -> list[int]:
        classes = sorted({index for _, _, index in self.waiting})
        if not classes:
            return []
        turn = min(classes, key=lambda index: (self.tags[index], index))
        taken: list[int] = []
        total = 0
        for item, work, index in self.waiting:
            if index != turn:
                continue
            if taken and (len(taken) == max_items or total + work > max_work):
                break
            taken.append(item)
            total += work
        self.last = self.tags[turn]
        self.tags[turn] += total
        self.waiting = [entry for entry in self.waiting if entry[0] not in taken]
        return taken


works = st.one_of(st.integers(1, 3), st.integers(1, 40), st.integers(1, 200))
steps = st.one_of(
    works.map(lambda work: ("push", work)),
    st.tuples(st.just("take"), st.sampled_from([1, 3, 16])),
    st.integers(0, 30).map(lambda item: ("discard", item)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=80))
def test_agrees_with_a_naive_twin(program: list[tuple[str, int]]) -> None:
    order: SizeClasses[int] = SizeClasses(BOUNDS)
    twin = Twin()
    sizes: list[int] = []
    for step, value in program:
        if step == "push":
            order.push(len(sizes), value)
            twin.push(len(sizes), value)
            sizes.append(value)
        elif step == "take":
            assert order.take(LIMIT, value) == twin.take(LIMIT, value)
        elif value < len(sizes):
            before = len(order)
            assert order.discard(value, sizes[value]) == (before > len(order))
            twin.discard(value)
        order.check()
        assert sorted(order) == sorted(item for item, _, _ in twin.waiting)
        assert order.work == sum(work for _, work, _ in twin.waiting)


arrivals = st.lists(st.tuples(st.integers(0, 400), works), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(arrivals=arrivals, max_items=st.sampled_from([1, 4, 16]))
def test_no_item_waits_longer_than_the_bound(
    arrivals: list[tuple[int, int]], max_items: int
) -> None:
    """One device that does a unit of work in a unit of time, arrivals at given times."""
    order: SizeClasses[int] = SizeClasses(BOUNDS)
    coming = sorted((time, index) for index, (time, _) in enumerate(arrivals))
    sizes = [work for _, work in arrivals]
    ahead: dict[int, int] = {}
    begins: dict[int, int] = {}
    passes: list[tuple[int, int, int]] = []  # begin, class, work
    now = 0
    while coming or len(order):
        if not len(order):
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            _, index = coming.pop(0)
            kind = order.class_of(sizes[index])
            ahead[index] = sum(sizes[i] for i in order if order.class_of(sizes[i]) == kind)
            order.push(index, sizes[index])
        taken = order.take(LIMIT, max_items)
        assert len({order.class_of(sizes[index]) for index in taken}) == 1
        total = sum(sizes[index] for index in taken)
        assert len(taken) <= max_items
        assert total <= LIMIT or len(taken) == 1
        begins |= dict.fromkeys(taken, now)
        passes.append((now, order.class_of(sizes[taken[0]]), total))
        now += total

    heaviest = [max((w for _, k, w in passes if k == kind), default=0) for kind in range(4)]
    for index, (arrived, work) in enumerate(arrivals):
        kind = order.class_of(work)
        others = sum(heaviest) - heaviest[kind]
        bound = 4 * ahead[index] + 3 * heaviest[kind] + others
        between = [w for begin, _, w in passes if arrived <= begin < begins[index]]
        assert sum(between) <= bound
        # In time: the pass that ran when the item came is added.
        assert begins[index] - arrived <= bound + max(heaviest)


def test_a_small_item_overtakes_any_queue_of_large_ones() -> None:
    order: SizeClasses[str] = SizeClasses(BOUNDS)
    for number in range(50):
        order.push(f"large {number}", 100)
    assert order.take(LIMIT, 16) == ["large 0"]
    order.push("small", 1)
    assert order.take(LIMIT, 16) == ["small"]


def test_a_stream_of_small_items_leaves_large_ones_their_share() -> None:
    order: SizeClasses[str] = SizeClasses(BOUNDS)
    for number in range(5):
        order.push(f"large {number}", 100)
    served = {"small": 0, "large": 0}
    for number in range(400):
        order.push(f"small {number} a", 2)
        order.push(f"small {number} b", 2)
        for item in order.take(LIMIT, 2):
            served[item.partition(" ")[0]] += 1
        if served["large"] == 5:
            break
    assert served["large"] == 5
    assert served["small"] * 2 <= 5 * 100 + 4


def test_bounds_are_shares_of_a_pass() -> None:
    assert class_bounds(16_384) == (256, 1_024, 4_096)
    assert class_bounds(10) == (1, 2)
    assert class_bounds(1) == (1,)
    with pytest.raises(ValueError, match="ascend"):
        SizeClasses((4, 2))
    order: SizeClasses[int] = SizeClasses((1,))
    order.push(7, 1)
    with pytest.raises(ValueError, match="waits already"):
        order.push(7, 1)
