"""Faults of the file system: damaged and foreign entries, full, read-only and lost disks."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm.store.entry import HEADER_BYTES, header
from llm.store.store import NodeStore
from llm.store.tier import Tier
from tests.llm.store.pages import empty, entry, key, page, views_of

SIZE = 1000


def tier(folder: Path, **options: Any) -> Tier:
    return Tier(folder, 1_000_000, retry_s=options.pop("retry_s", 0.0), **options)


def read(of: Tier | NodeStore, number: int, size: int = SIZE) -> bytes | None:
    room, views = empty(size)
    return bytes(room) if of.get([key(number)], [views])[0] else None


def segment(folder: Path) -> Path:
    (found,) = folder.glob("*.seg")
    return found


def overwrite(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def foreign_header(file: Path) -> None:
    """Another key's entry, whole in itself, in the place of this one."""
    data = page(99, SIZE)
    overwrite(file, 0, header(key(99), views_of(data)) + data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: overwrite(file, HEADER_BYTES + 500, b"\0\xff\0\xff"),
        lambda file: overwrite(file, 0, bytes(HEADER_BYTES)),
        lambda file: overwrite(file, HEADER_BYTES + SIZE - 400, bytes(400)),
        lambda file: os.truncate(file, HEADER_BYTES + SIZE - 1),
        lambda file: os.truncate(file, 0),
        foreign_header,
    ],
    ids=["flipped", "no header", "torn", "cut off", "empty", "foreign"],
)
def test_a_damaged_entry_is_a_miss(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = tier(tmp_path)
    assert store.put([entry(1, SIZE)]) == [True]
    damage(segment(tmp_path))
    assert read(store, 1) is None
    assert store.counters.corrupt == 1
    assert store.find([key(1)]) == set(), "a damaged entry is offered again"
    assert store.put([entry(1, SIZE)]) == [True]
    assert read(store, 1) == page(1, SIZE)


def test_a_page_of_another_length_is_a_miss(tmp_path: Path) -> None:
    store = tier(tmp_path)
    store.put([entry(1, SIZE)])
    assert read(store, 1, SIZE + 1) is None
    assert read(store, 1) == page(1, SIZE)


def test_a_segment_removed_by_somebody(tmp_path: Path) -> None:
    store = tier(tmp_path)
    store.put([entry(1, SIZE)])
    segment(tmp_path).unlink()
    store.close()
    assert read(store, 1) is None
    assert store.counters.errors["LOST"] == 1
    assert store.put([entry(1, SIZE), entry(2, SIZE)]) == [True, True]
    assert read(store, 2) == page(2, SIZE)
    store.check(deep=True)


def test_the_directory_deleted_under_the_process(tmp_path: Path) -> None:
    store = tier(tmp_path / "kv")
    store.put([entry(1, SIZE)])
    shutil.rmtree(tmp_path / "kv")
    assert read(store, 1) is None
    assert store.counters.errors["LOST"] == 1
    assert store.put([entry(2, SIZE)]) == [True]
    assert read(tier(tmp_path / "kv"), 2) == page(2, SIZE)


def test_a_damaged_index_is_started_anew(tmp_path: Path) -> None:
    store = tier(tmp_path)
    store.put([entry(n, SIZE) for n in range(50)])
    store.close()
    for file in tmp_path.glob("index-*"):
        file.unlink()
    overwrite(tmp_path / "index", 0, b"not a database, but as long as one " * 50)
    assert read(store, 1) is None
    assert store.counters.errors["SQLITE_NOTADB"] == 1
    assert store.put([entry(1, SIZE)]) == [True]
    assert read(store, 1) == page(1, SIZE)
    store.check(deep=True)


@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_disk_that_takes_nothing_can_still_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    store = tier(tmp_path, retry_s=0.05)
    store.put([entry(1, SIZE)])

    def refuse(*_: object) -> int:
        raise OSError(kind, os.strerror(kind))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", refuse)
        assert store.put([entry(2, SIZE)]) == [False]
        assert store.counters.errors[errno.errorcode[kind]] == 1
        assert not store.available
        assert store.put([entry(3, SIZE)]) == [False]
        assert store.counters.errors[errno.errorcode[kind]] == 1, "asked again at once"
        assert read(store, 1) == page(1, SIZE)
    time.sleep(0.06)
    assert store.available
    assert store.put([entry(2, SIZE)]) == [True]


def test_a_write_that_ends_early_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tier(tmp_path)
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: whole(fd, [b"".join(parts)[:300]], at))
    assert store.put([entry(1, SIZE)]) == [True]
    assert read(store, 1) == page(1, SIZE)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = tier(tmp_path / "file" / "kv")
    assert store.put([entry(1, SIZE)]) == [False]
    assert read(store, 1) is None
    assert store.find([key(1)]) == set()
    assert store.counters.errors["ENOTDIR"] >= 1
    assert store.stats()["errors"]["ENOTDIR"] >= 1


def test_a_read_error_closes_the_tier_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tier(tmp_path, retry_s=60.0)
    store.put([entry(1, SIZE)])

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", refuse)
        assert read(store, 1) is None
    assert not store.available
    assert store.find([key(1)]) == set()
    assert store.stats()["errors"] == {"EIO": 1}


def test_a_slow_read_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tier(tmp_path, timeout_s=0.05)
    store.put([entry(1, SIZE), entry(2, SIZE)])
    quick = os.preadv
    seen: list[set[bytes]] = []

    def slow(*arguments: Any) -> int:
        time.sleep(0.1)
        # Meanwhile another thread asks what is there.
        seen.append(store.find([key(2)]))
        return quick(*arguments)

    monkeypatch.setattr(os, "preadv", slow)
    rooms = [empty(SIZE), empty(SIZE)]
    assert store.get([key(1), key(2)], [views for _, views in rooms]) == [True, False]
    assert seen == [set()], "nothing is offered while a read hangs"
    assert store.counters.timeouts == 2


def test_without_its_memory_tier_the_store_uses_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = NodeStore(
        memory=tmp_path / "file" / "kv",
        memory_bytes=100_000,
        disk=tmp_path / "disk",
        disk_bytes=100_000,
    )
    assert store.put([entry(1, SIZE)]) == [True]
    assert read(store, 1) == page(1, SIZE)
    assert not store.stats()["memory"]["available"]
    assert store.stats()["disk"]["entries"] == 1


def test_a_store_needs_a_directory() -> None:
    with pytest.raises(ValueError, match="a memory tier, a disk tier or both"):
        NodeStore(memory=None, memory_bytes=1, disk=None, disk_bytes=1)
