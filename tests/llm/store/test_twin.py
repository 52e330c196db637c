"""The store against a plain dictionary, on random operations of two processes' worth of handles."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llm.store.entry import HEADER_BYTES
from llm.store.store import NodeStore
from tests.llm.store.pages import empty, entry, key, page

MEMORY, DISK = 8_000, 24_000
SIZES = (40, 700)
numbers = st.integers(0, 59)
batches = st.lists(numbers, min_size=1, max_size=6, unique=True)


def size_of(number: int) -> int:
    return SIZES[number % 2]


class Twin:
    """What was stored, in the order of last use (the latest last). Never forgets."""

    def __init__(self) -> None:
        self.order: dict[int, None] = {}

    def use(self, number: int) -> None:
        self.order.pop(number, None)
        self.order[number] = None

    def hot(self, budget: int) -> list[int]:
        """The most recently used pages that fit three quarters of a budget."""
        left = budget * 3 // 4
        found = []
        for number in reversed(self.order):
            left -= size_of(number) + HEADER_BYTES
            if left < 0:
                break
            found.append(number)
        return found


class StoreMachine(RuleBasedStateMachine):
    """Two handles on the same directories act like two processes of a node."""

    with_disk = True

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.handles = [self.handle(), self.handle()]
        self.twin = Twin()

    def handle(self) -> NodeStore:
        root = Path(self.folder.name)
        return NodeStore(
            memory=root / "memory",
            memory_bytes=MEMORY,
            disk=root / "disk" if self.with_disk else None,
            disk_bytes=DISK,
            timeout_s=30,
        )

    @rule(who=st.integers(0, 1), batch=batches)
    def put(self, who: int, batch: list[int]) -> None:
        assert all(self.handles[who].put([entry(n, size_of(n)) for n in batch]))
        for number in batch:
            self.twin.use(number)
        self.handles[who].flush()

    @rule(who=st.integers(0, 1), batch=batches)
    def get(self, who: int, batch: list[int]) -> None:
        rooms = [empty(size_of(n)) for n in batch]
        hot = set(self.twin.hot(MEMORY))
        done = self.handles[who].get([key(n) for n in batch], [views for _, views in rooms])
        for number, (room, _), ok in zip(batch, rooms, done, strict=True):
            if ok:
                assert number in self.twin.order, "a page that nobody stored"
                assert bytes(room) == page(number, size_of(number))
            else:
                assert number not in hot, "a page in recent use is gone"
        for number, ok in zip(batch, done, strict=True):
            if ok:
                self.twin.use(number)
        self.handles[who].flush()

    @rule(who=st.integers(0, 1), batch=batches)
    def touch(self, who: int, batch: list[int]) -> None:
        there = self.handles[who].find([key(n) for n in batch])
        batch = [n for n in batch if key(n) in there]
        self.handles[who].touch([key(n) for n in batch])
        self.handles[who].flush()
        for number in batch:
            self.twin.use(number)

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.handles[who].close()
        self.handles[who] = self.handle()

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "handles"):
            self.handles[0].check(deep=True)
            for handle in self.handles:
                for tier in handle.tiers.values():
                    assert not tier.counters.errors
                    assert not tier.counters.corrupt

    @invariant()
    def recent_pages_are_there(self) -> None:
        if hasattr(self, "handles"):
            hot = [key(n) for n in self.twin.hot(MEMORY)]
            assert self.handles[1].find(hot) == set(hot)

    def teardown(self) -> None:
        if hasattr(self, "handles"):
            for handle in self.handles:
                handle.close()
            self.folder.cleanup()


class MemoryMachine(StoreMachine):
    """Without a tier below, what leaves is gone."""

    with_disk = False


_SETTINGS = settings(max_examples=20, stateful_step_count=30, deadline=None)
StoreMachine.TestCase.settings = _SETTINGS
MemoryMachine.TestCase.settings = _SETTINGS
TestTwoTiers = StoreMachine.TestCase
TestOneTier = MemoryMachine.TestCase
