"""Promotion, demotion and budgets of the two tiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm.store.index import Place, now
from llm.store.log import SegmentLog
from llm.store.store import NodeStore
from tests.llm.store.pages import empty, entry, key, page

SIZE = 1000


def store(folder: Path, memory: int = 20_000, disk: int = 200_000) -> NodeStore:
    return NodeStore(
        memory=folder / "memory", memory_bytes=memory, disk=folder / "disk", disk_bytes=disk
    )


def read(of: NodeStore, number: int) -> bytes | None:
    room, views = empty(SIZE)
    return bytes(room) if of.get([key(number)], [views])[0] else None


def fill(of: NodeStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        assert of.put([entry(number, SIZE)]) == [True]


def test_what_leaves_memory_is_on_disk_and_comes_back_when_read(tmp_path: Path) -> None:
    kv = store(tmp_path)
    fill(kv, 0, 60)
    memory, disk = kv.tiers["memory"], kv.tiers["disk"]
    assert memory.find([key(0)]) == set()
    assert disk.find([key(0)]) == {key(0)}
    assert read(kv, 0) == page(0, SIZE)
    assert memory.counters.moved_in == 1
    assert memory.find([key(0)]) == {key(0)}
    assert read(kv, 0) == page(0, SIZE)
    assert disk.counters.hits == 1, "the second read came from memory"
    kv.check(deep=True)


def test_a_read_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    kv = store(tmp_path)
    fill(kv, 0, 60)
    memory = kv.tiers["memory"]
    with memory._writing:
        assert read(kv, 0) == page(0, SIZE)
    assert memory.find([key(0)]) == set()
    assert memory.counters.moved_in == 0


def test_budgets_are_kept(tmp_path: Path) -> None:
    kv = store(tmp_path, memory=20_000, disk=50_000)
    for number in range(300):
        kv.put([entry(number, SIZE)])
        for name, budget in (("memory", 20_000), ("disk", 50_000)):
            on_disk = sum(file.stat().st_size for file in (tmp_path / name).glob("*.seg"))
            assert on_disk <= budget
    kv.check(deep=True)
    assert kv.tiers["disk"].counters.evicted > 200


def test_opening_removes_what_a_killed_writer_left_above_the_budget(tmp_path: Path) -> None:
    kv = store(tmp_path)
    fill(kv, 0, 18)
    with kv.tiers["memory"]._guard() as log:  # a put that ends before it makes room
        assert log is not None
        log.write([(*entry(number, SIZE), now()) for number in range(18, 24)], set())
        with pytest.raises(AssertionError, match="over its budget"):
            kv.check()
    kv.close()
    again = store(tmp_path)
    again.check(deep=True)
    assert again.tiers["memory"].find([key(23)]) == {key(23)}
    assert read(again, 0) == page(0, SIZE), "the oldest pages moved to the disk"


def test_a_used_page_stays_while_others_pass(tmp_path: Path) -> None:
    kv = store(tmp_path, memory=20_000, disk=30_000)
    fill(kv, 0, 1)
    for number in range(1, 200):
        fill(kv, number, 1)
        kv.touch([key(0)])
        kv.flush()
    assert key(0) in kv.tiers["memory"].find([key(0)])
    assert kv.find([key(1)]) == set()


@pytest.mark.parametrize("hot", [False, True])
def test_a_use_that_is_noted_while_its_page_is_moved_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot: bool
) -> None:
    """Another thread notes uses while room is made: neither does the page leave, nor is it as old
    as before when it stays."""
    kv = store(tmp_path, memory=20_000)
    memory = kv.tiers["memory"]
    fill(kv, 0, 18)
    if hot:
        kv.touch([key(0)])
        kv.flush()
    original, noted = SegmentLog.load, []

    def load(log: SegmentLog, wanted: bytes, place: Place) -> bytearray | None:
        if wanted == key(0) and not noted and log.directory == memory.directory:
            kv.touch([key(0)])
            kv.flush()
            noted.append(log.index.find([key(0)])[key(0)].tick)
        return original(log, wanted, place)

    monkeypatch.setattr(SegmentLog, "load", load)
    number = 18
    while not noted:
        fill(kv, number, 1)
        number += 1
    with memory._guard() as log:
        assert log is not None
        assert log.index.find([key(0)])[key(0)].tick == noted[0]
    kv.check(deep=True)


def test_a_page_above_a_quarter_of_the_budget_is_not_taken(tmp_path: Path) -> None:
    kv = store(tmp_path, memory=20_000, disk=200_000)
    assert kv.put([entry(1, 6_000)]) == [True]
    assert kv.tiers["memory"].find([key(1)]) == set()
    assert kv.tiers["disk"].find([key(1)]) == {key(1)}
    assert kv.put([entry(2, 60_000)]) == [False]


@pytest.mark.parametrize("with_disk", [True, False])
def test_everything_is_there_after_a_restart(tmp_path: Path, with_disk: bool) -> None:
    def opened() -> NodeStore:
        disk = tmp_path / "disk" if with_disk else None
        return NodeStore(
            memory=tmp_path / "memory", memory_bytes=40_000, disk=disk, disk_bytes=200_000
        )

    kv = opened()
    fill(kv, 0, 25)
    again = opened()
    assert [read(again, n) for n in range(25)] == [page(n, SIZE) for n in range(25)]
