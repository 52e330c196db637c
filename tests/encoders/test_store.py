"""The shared store: by example, against a naive twin, and with processes that die."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from encoders.embedding import Embedding, RowsArray, Special, Text, image_layout
from encoders.embedding import Rows as RowsSegment
from encoders.store import RowsLost, RowsRef, Store, open_rows
from encoders.store import directory as directories
from encoders.store.format import charge, pack_head
from encoders.store.store import SCALE, SLACK

PAGE = 4096


def embedding(name: str, pages: int = 1, fill: float | None = None) -> Embedding:
    """Rows that take, with their head, `pages` pages."""
    value = float(sum(name.encode())) if fill is None else fill
    array = RowsArray(np.full((4 * pages - 2, 256), value, np.float32), "float32")
    return Embedding("image", name, image_layout(len(array)), array)


ONE = PAGE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "omniserve-test", 10 * ONE)
    yield opened
    opened.close()


def rows(store: Store, digest: str) -> np.ndarray:
    with store.open(digest) as lease:
        return lease.rows().data


def test_rows_come_back_as_they_were(store: Store) -> None:
    item = embedding("a")
    kept = store.put(item, 1.5)
    assert kept is not None
    found = store.get("a")
    assert found == kept
    assert found.layout == item.layout
    assert found.modality == "image"
    reference = found.rows
    assert isinstance(reference, RowsRef)
    assert (len(reference), reference.hidden, reference.dtype) == (2, 256, "float32")
    np.testing.assert_array_equal(rows(store, "a"), item.rows.data)
    assert not rows(store, "a").flags.writeable
    store.check()


def test_every_kind_of_segment_and_number(store: Store) -> None:
    layout = (
        Special("<|mimo_video_start|>"),
        *(Text(f"00:{i:02d} é") for i in range(200)),  # a description longer than a page
        RowsSegment("video", 3),
        RowsSegment("audio", 1),
    )
    for name, dtype in (("float32", np.float32), ("float16", np.float16), ("bfloat16", np.uint16)):
        data = np.arange(4 * 8, dtype=dtype).reshape(4, 8)
        store.put(Embedding("video", name, layout, RowsArray(data, name)), 1.0)
        found = store.get(name)
        assert found is not None
        assert found.layout == layout
        with store.open(name) as lease:
            back = lease.rows()
        assert back.dtype == name
        np.testing.assert_array_equal(back.data, data)
        assert back.data.ctypes.data % 64 == 0


def test_a_miss_a_hit_and_their_counters(store: Store) -> None:
    assert store.get("a") is None
    assert store.get("a", count_miss=False) is None
    store.put(embedding("a"), 1.0)
    assert store.get("a") is not None
    assert "a" in store
    assert "b" not in store
    report = store.report()
    assert (report["hits"], report["misses"], report["puts"]) == (1, 1, 1)
    assert report["used_bytes"] == report["bytes_written"] == ONE
    assert report["bytes_read"] == 2 * 256 * 4


def test_the_first_writer_of_a_digest_wins(store: Store) -> None:
    store.put(embedding("a", fill=1.0), 1.0)
    assert store.put(embedding("a", fill=2.0), 1.0) is not None
    assert rows(store, "a")[0, 0] == 1.0
    assert store.stats.known == 1
    assert store.report()["used_bytes"] == ONE
    store.check()


def test_what_is_larger_than_the_store_travels_by_value(store: Store) -> None:
    # case 60
    store.put(embedding("a"), 1.0)
    assert store.put(embedding("big", 11), 1.0) is None
    assert store.stats.too_large == 1
    assert "a" in store
    store.check()


def test_two_of_three_quarters_make_progress(tmp_path: Path) -> None:
    # case 60: nothing is pinned, so the second evicts the first
    store = Store(tmp_path / "omniserve-test", 4 * ONE)
    for name in ("a", "b", "a", "b"):
        assert store.put(embedding(name, 3), 1.0) is not None
        assert name in store
        store.check()
    assert store.report()["used_bytes"] == 3 * ONE


def test_a_full_file_system_is_no_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "writev", full)
    assert store.put(embedding("a"), 1.0) is None
    assert store.stats.no_space == 1
    monkeypatch.undo()
    assert store.put(embedding("a"), 1.0) is not None
    store.check()


def test_only_whole_arrays_are_stored(store: Store) -> None:
    with pytest.raises(TypeError, match="whole arrays"):
        store.put(Embedding("image", "a", image_layout(1), "reference"), 1.0)
    columns = RowsArray(np.zeros((4, 8), np.float32)[:, ::2], "float32")
    with pytest.raises(TypeError, match="whole arrays"):
        store.put(Embedding("image", "a", image_layout(4), columns), 1.0)
    with pytest.raises(ValueError, match="letters and digits"):
        store.get("../a")


def test_rows_in_use_outlive_their_eviction(store: Store) -> None:
    # case 61: a lease keeps its memory readable and stops no eviction
    store.put(embedding("a", 9), 1.0)
    lease = store.open("a")
    before_eviction = lease.rows()
    store.put(embedding("b", 9), 1.0)
    assert "a" not in store
    after_eviction = lease.rows()
    again = open_rows(lease.shared_path, "a")
    for array in (before_eviction, after_eviction, again.rows()):
        assert (array.data == sum(b"a")).all()
    again.close()
    path = lease.shared_path
    lease.close()
    with pytest.raises(RowsLost):
        open_rows(path, "a")
    with pytest.raises(ValueError, match="closed"):
        _ = lease.shared_path
    assert (after_eviction.data == sum(b"a")).all()
    with pytest.raises(RowsLost, match="gone"):
        store.open("a")


def test_a_lease_never_shows_another_items_rows(store: Store) -> None:
    store.put(embedding("a"), 1.0)
    store.put(embedding("b"), 1.0)
    with store.open("a") as lease, pytest.raises(RowsLost, match="holds"):
        open_rows(lease.shared_path, "b")


@pytest.mark.parametrize("damage", ["cut", "magic", "description", "empty"])
def test_a_damaged_file_is_a_miss_and_removed(store: Store, damage: str) -> None:
    store.put(embedding("a"), 1.0)
    path = store.directory / "a"
    data = bytearray(path.read_bytes())
    if damage == "magic":
        data[0] ^= 1
    elif damage == "description":
        data[40] ^= 1
    path.write_bytes({"cut": data[:-1], "empty": b""}.get(damage, data))
    with pytest.raises(AssertionError):
        store.check()
    with pytest.raises(RowsLost):
        store.open("a")
    assert store.get("a") is None
    assert store.stats.damaged == 1
    assert "a" not in store
    assert store.put(embedding("a"), 1.0) is not None
    store.check()


def test_check_finds_and_repairs_a_wrong_count(store: Store) -> None:
    store.put(embedding("a"), 1.0)
    (store.directory / "a").unlink()
    with pytest.raises(AssertionError, match="0 bytes in files, 4096 counted"):
        store.check()
    store.check()
    store.put(embedding("b"), 1.0)
    (store.directory / "b").rename(store.directory / "c")
    with pytest.raises(AssertionError, match="holds the embedding of b"):
        store.check()


class NaiveStore:
    """GreedyDual-Size with slack as a scan over a dictionary, in the store's units."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.kept: dict[str, tuple[int, float]] = {}
        self.priority: dict[str, tuple[int, int]] = {}
        self.clock = 0
        self.time = 0

    def use(self, name: str) -> None:
        size, seconds = self.kept[name]
        self.time += 1
        self.priority[name] = (self.clock + round(seconds / size * SCALE), self.time)

    def get(self, name: str) -> bool:
        if name in self.kept:
            self.use(name)
        return name in self.kept

    def put(self, name: str, size: int, seconds: float) -> bool:
        if size > self.budget:
            return False
        if name in self.kept:
            return True
        if self.used + size > self.budget:
            most = max(0, self.budget - size - self.budget // SLACK)
            while self.used > most:
                victim = min(self.kept, key=lambda name: self.priority[name])
                self.clock = max(self.clock, self.priority[victim][0])
                del self.kept[victim]
        self.kept[name] = (size, seconds)
        self.use(name)
        return True

    @property
    def used(self) -> int:
        return sum(size for size, _ in self.kept.values())


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_naive_twin(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    budget = rng.randrange(0, 120) * PAGE
    # Two processes' worth of handles on one directory behave as one.
    stores = [Store(tmp_path / "omniserve-test", budget) for _ in range(2)]
    twin = NaiveStore(budget)
    for _ in range(300):
        store = rng.choice(stores)
        name = f"n{min(rng.randrange(60), rng.randrange(60))}"
        if rng.random() < 0.5:
            assert (store.get(name) is not None) == twin.get(name)
        else:
            item = embedding(name, rng.randrange(1, 9))
            seconds = rng.choice([0.0, 0.1, 1.0, rng.random()])
            size = charge(len(pack_head(item, item.rows, seconds)) + item.rows.data.nbytes)
            assert (store.put(item, seconds) is not None) == twin.put(name, size, seconds)
        names = {path.name for path in store.directory.iterdir() if path.name[0] != "."}
        assert names == set(twin.kept)
        assert store.report()["used_bytes"] == twin.used
    for store in stores:
        store.check()
        store.close()


NAMES = [f"n{index}" for index in range(30)]


def _write_for_ever(directory: Path, budget: int, seed: int) -> None:
    store, rng = Store(directory, budget), random.Random(seed)
    while True:
        name = rng.choice(NAMES)
        found = store.get(name)
        if found is None:
            store.put(embedding(name, 1 + int(name[1:]) % 7), rng.random())
            continue
        with contextlib.suppress(RowsLost):
            assert (rows(store, name) == sum(name.encode())).all()


def test_processes_that_are_killed_leave_the_store_consistent(tmp_path: Path) -> None:
    """Writers and readers under eviction, killed at any moment, again and again."""
    directory, budget = tmp_path / "omniserve-test", 40 * PAGE
    store = Store(directory, budget)
    context, rng = multiprocessing.get_context("fork"), random.Random(1)
    jobs: list[multiprocessing.process.BaseProcess] = []
    for round_ in range(25):
        while len(jobs) < 3:
            job = context.Process(
                target=_write_for_ever, args=(directory, budget, round_ * 10 + len(jobs))
            )
            job.start()
            jobs.append(job)
        time.sleep(rng.random() * 0.06)
        victim = jobs.pop(rng.randrange(len(jobs)))
        assert victim.is_alive(), "a process found wrong rows"
        os.kill(victim.pid or 0, signal.SIGKILL)
        victim.join()
        store.check()
    for job in jobs:
        assert job.is_alive(), "a process found wrong rows"
        job.kill()
        job.join()
    store.check()
    seen = 0
    for name in NAMES:
        if store.get(name) is not None:
            seen += 1
            assert (rows(store, name) == sum(name.encode())).all()
    assert seen
    assert store.report()["used_bytes"] <= budget
    assert {path.name for path in directory.iterdir()} <= {*NAMES, ".users", ".ledger"}
    store.close()


def test_a_writer_that_dies_with_the_lock_is_recovered_from(tmp_path: Path) -> None:
    directory = tmp_path / "omniserve-test"
    store = Store(directory, 10 * PAGE)
    store.put(embedding("a"), 1.0)

    def die_after_link() -> None:
        victim = Store(directory, 10 * PAGE)
        original = os.link

        def link(*args: object, **more: object) -> None:
            original(*args, **more)  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGKILL)

        os.link = link  # type: ignore[assignment]
        victim.put(embedding("b"), 1.0)

    job = multiprocessing.get_context("fork").Process(target=die_after_link)
    job.start()
    job.join()
    assert job.exitcode == -signal.SIGKILL
    assert store.get("b") is not None  # whole, though nobody has counted it
    store.check()
    assert store.report()["used_bytes"] == 2 * PAGE
    store.close()


def test_threads_share_a_store(store: Store) -> None:
    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(200):
            name = rng.choice(NAMES)
            if store.get(name) is None:
                store.put(embedding(name, 1 + int(name[1:]) % 4), 1.0)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.check()


def test_the_last_user_removes_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "omniserve-test"
    one, two = Store(directory, PAGE), Store(directory, PAGE)
    one.close()
    assert directory.exists()
    two.put(embedding("a"), 1.0)
    two.close()
    two.close()
    assert not directory.exists()


def test_a_directory_that_nobody_uses_is_swept(tmp_path: Path) -> None:
    def leave_behind() -> None:
        Store(tmp_path / "omniserve-dead", PAGE).put(embedding("a"), 1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    job = multiprocessing.get_context("fork").Process(target=leave_behind)
    job.start()
    job.join()
    assert (tmp_path / "omniserve-dead" / "a").exists()
    (tmp_path / "omniserve-new").mkdir()  # somebody is about to lock it
    (tmp_path / "other").mkdir()
    live = Store(tmp_path / "omniserve-live", PAGE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "omniserve-live",
        "omniserve-new",
        "other",
    ]
    assert directories.sweep(tmp_path) == 0
    live.close()
