"""Device pool and tiers against naive twins on random histories."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tools.replay.cache import DevicePool, Tier, Windows

# Paths in a tree: the id of a block names its parent, as digests of prefixes do.
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(
    lambda turns: [int("1" + "".join(map(str, turns[: i + 1]))) for i in range(len(turns))]
)


class NaivePool:
    """Blocks by time of last use, locks by request; a scan over everything for each question."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used: dict[int, tuple[int, int]] = {}
        self.locks: list[list[int]] = []
        self.clock = 0

    def depth(self, path: list[int]) -> int:
        return next((i for i, b in enumerate(path) if b not in self.used), len(path))

    def serve(self, path: list[int]) -> bool:
        """A request computes its whole path and stays; False when there is no room."""
        locked = {b for p in self.locks for b in p} | set(path[: self.depth(path)])
        missing = len(path) - self.depth(path)
        while len(self.used) + missing > self.capacity:
            idle = [b for b in self.used if b not in locked]
            if not idle:
                return False
            del self.used[min(idle, key=lambda b: self.used[b])]
        self.locks.append(path)
        for b in path:
            self.used.setdefault(b, (0, 0))
        return True

    def leave(self, index: int) -> None:
        self.clock += 1
        path = self.locks.pop(index)
        locked = {b for p in self.locks for b in p}
        for i, b in enumerate(path):
            if b not in locked:
                # A parent is younger than its child.
                self.used[b] = (self.clock, -i)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(PATHS, st.booleans(), st.integers(0, 9)), max_size=40))
def test_the_pool_agrees_with_its_twin(history: list[tuple[list[int], bool, int]]) -> None:
    pool, naive = DevicePool(12, 1, 4), NaivePool(12)
    serving: list[list[int]] = []
    for path, leaves, which in history:
        assert pool.depth(path) == naive.depth(path)
        here = pool.depth(path)
        pool.lock(path[:here])
        fits = len(path) - here <= pool.available_tokens
        assert fits == naive.serve(path) or not fits
        if fits:
            pool.reserve(len(path) - here)
            pool.insert(path[here:])
            serving.append(path)
        else:
            pool.unlock(path[:here])
            # The twin evicted in vain; both would go different ways from here.
            break
        if leaves:
            index = which % len(serving)
            pool.unlock(serving.pop(index))
            naive.leave(index)
        counts: dict[int, int] = {}
        for p in serving:
            for b in p:
                counts[b] = counts.get(b, 0) + 1
        pool.check(counts)
        assert {b for p in [path] for b in p if b in pool} == set(path) & set(naive.used)
        assert len(pool) == len(naive.used)


@settings(max_examples=200, deadline=None)
@given(st.lists(PATHS, max_size=40))
def test_a_tier_keeps_what_was_written_last(history: list[list[int]]) -> None:
    tier = Tier(6, 3)
    recent: list[int] = []
    for path in history:
        tier.write(path)
        for b in reversed(path):
            if b in recent:
                recent.remove(b)
            recent.append(b)
        del recent[: max(0, len(recent) - 6)]
        assert len(tier) == len(recent)
        assert all(b in tier for b in recent)
        kept = next((i for i, b in enumerate(path) if b not in recent), len(path))
        assert tier.depth(path, 0) == kept


def test_windows_are_bounded_and_changes_are_noted() -> None:
    changes: dict[int, None] = {}
    windows = Windows(2, changes)
    for block in (1, 2, 1, 3):
        windows.add(block)
    assert [b for b in (1, 2, 3) if b in windows] == [1, 3]
    assert list(changes) == [1, 2, 3]
    nothing = Windows(0)
    nothing.add(1)
    assert len(nothing) == 0
