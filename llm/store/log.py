"""A directory of segment files with an index: the pages of one tier, held to a byte budget.

Processes append pages to segment files of their own and share the index. Room is made by removing
the oldest segment: its entries that were used lately move to the newest one, the others leave.
"Lately" is exact: the most recently used three quarters of the budget stay.
A segment is never rewritten, so that a reader sees an entry whole or not at all, and a writer that
dies leaves at most bytes behind that no index names.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from llm.store.counters import TierCounters
from llm.store.entry import HEADER_BYTES, Views, size_of
from llm.store.files import Readers, Writer
from llm.store.index import Index, Place, now

Entry = tuple[bytes, Views]
Demote = Callable[[Sequence[Entry], Sequence[int]], object]
_Timed = tuple[bytes, Views, int]

_SEGMENTS = 16
_MAX_SEGMENT = 256 * 2**20
_MOVE_BYTES = 16 * 2**20


class SegmentLog:
    """Methods raise OSError and sqlite3.Error. One thread may read while another writes."""

    def __init__(
        self,
        directory: Path,
        budget_bytes: int,
        *,
        durable: bool,
        timeout_s: float,
        counters: TierCounters,
        demote: Demote | None,
    ) -> None:
        """Opens or creates the directory. See `Tier` for the options."""
        self.directory = directory
        self.budget_bytes = budget_bytes
        self.segment_bytes = max(1, min(budget_bytes // _SEGMENTS, _MAX_SEGMENT))
        self._timeout_s = timeout_s
        self._counters = counters
        self._demote = demote
        directory.mkdir(parents=True, exist_ok=True)
        files = [path.name for path in directory.glob("*.seg")]
        self.index = Index(directory / "index", timeout_s, durable)
        self._readers = Readers(directory)
        self._writer: Writer | None = None
        self._hot_since = self._hot_bytes_left = 0
        self._lock = threading.Lock()
        known = {name for name, _ in self.index.segments()}
        for name in set(files) - known:
            (directory / name).unlink(missing_ok=True)

    def in_place(self) -> bool:
        """Whether the files that are open are still those in the directory."""
        return self.index.in_place()

    def close(self) -> None:
        self.drop_writer()
        self._readers.close()
        with suppress(sqlite3.Error):
            self.index.close()

    def drop_writer(self) -> None:
        """Append to a new segment from now on."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def read(self, keys: Sequence[bytes], views: Sequence[Views], done: list[bool]) -> None:
        """Fill ``views`` and set ``done`` of the pages that are there, until the time is over."""
        left = list(range(len(keys)))
        deadline = time.monotonic() + self._timeout_s
        # Twice: an entry may move to another segment between the look-up and the read.
        for last in (False, True):
            places = self.index.find([keys[i] for i in left])
            moved = []
            for i in left:
                place = places.get(keys[i])
                if place is None or place.length != size_of(views[i]):
                    continue
                if time.monotonic() > deadline:
                    self._counters.timeouts += 1
                    return
                try:
                    done[i] = self._readers.read(place.segment, place.offset, keys[i], views[i])
                except FileNotFoundError:
                    moved.append(i)
                    if last:
                        self._lost(place.segment)
                    continue
                if not done[i]:
                    self._counters.corrupt += 1
                    self.index.forget(keys[i], place)
            left = moved
            if not left:
                return

    def write(self, entries: Sequence[_Timed], stored: set[bytes]) -> None:
        """Append pages (key, views, last use) that are not there yet, then make room.

        Adds the keys that are there to ``stored``. Pages above a quarter of the budget are not
        taken.
        """
        known = self.index.find([key for key, _, _ in entries])
        if known:
            self.index.touch([(key, tick) for key, _, tick in entries if key in known])
            stored.update(known)
        batch: dict[bytes, _Timed] = {}
        size = 0
        for key, views, tick in entries:
            length = HEADER_BYTES + size_of(views)
            if key in known or length > self.budget_bytes // 4:
                continue
            batch[key] = (key, views, tick)
            size += length
            if size >= self.segment_bytes:
                self._append(list(batch.values()), stored)
                batch, size = {}, 0
        self._append(list(batch.values()), stored)

    def make_room(self) -> None:
        """Remove oldest segments until the budget is kept."""
        if self.index.total() <= self.budget_bytes:
            return
        with open(self.directory / "evict.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Another process of the node is at it.
                return
            while self.index.total() > self.budget_bytes:
                self._evict(self.index.segments()[0][0])

    def load(self, key: bytes, place: Place) -> bytearray | None:
        """A page's bytes, None if they are damaged or gone."""
        page = bytearray(place.length)
        try:
            with Readers(self.directory) as readers:
                whole = readers.read(place.segment, place.offset, key, [memoryview(page)])
        except FileNotFoundError:
            return None
        return page if whole else None

    def check(self, deep: bool) -> None:
        """See `Tier.check`."""
        for name, size in self.index.segments():
            on_disk = (self.directory / name).stat().st_size
            assert on_disk >= size, f"{name} has {on_disk} bytes, the index says {size}"
            end = 0
            for key, place in self.index.of_segment(name):
                assert place.offset >= end, f"entries of {name} overlap at {place.offset}"
                end = place.offset + HEADER_BYTES + place.length
                assert end <= size, f"an entry of {name} ends at {end}, behind its {size} bytes"
                if deep:
                    assert self.load(key, place) is not None, f"{name}: {place.offset} is damaged"
        over = self.index.total() - self.budget_bytes
        assert over <= 0, f"{self.directory} is {over} bytes over its budget"

    def _lost(self, segment: str) -> None:
        """Forget a segment whose file somebody removed."""
        if self.index.of_segment(segment):
            self._counters.errors["LOST"] += 1
            self.index.remove_segment(segment)

    def _append(self, batch: Sequence[_Timed], stored: set[bytes]) -> None:
        if not batch:
            return
        writer = self._segment()
        rows = writer.append([(key, views) for key, views, _ in batch])
        timed = [(*row, tick) for row, (_, _, tick) in zip(rows, batch, strict=True)]
        if not self.index.add(writer.name, writer.end, timed):
            self.drop_writer()
            return
        stored.update(key for key, _, _ in batch)
        self._counters.written += len(batch)
        self._counters.written_bytes += sum(length for _, _, length in rows)

    def _segment(self) -> Writer:
        with self._lock:
            if self._writer is not None and (
                self._writer.end >= self.segment_bytes or not self._writer.in_place()
            ):
                self._writer.close()
                self._writer = None
            if self._writer is None:
                name = f"{uuid.uuid4().hex}.seg"
                # The row first: a file without one is taken for a leftover.
                self.index.add_segment(name)
                self._writer = Writer(self.directory, name)
            return self._writer

    def _evict(self, segment: str) -> None:
        if self._writer is not None and self._writer.name == segment:
            self.drop_writer()
        hot_since = self._hot(segment)
        self._clear(self.index.of_segment(segment), hot_since)
        # What was used while the others were moved stays after all.
        late = [found for found in self.index.of_segment(segment) if found[1].tick >= hot_since]
        self._clear(late, hot_since)
        self._counters.evicted += self.index.remove_segment(segment)
        (self.directory / segment).unlink(missing_ok=True)

    def _clear(self, entries: Sequence[tuple[bytes, Place]], hot_since: int) -> None:
        """Move what is hot to the newest segment and hand the rest down."""
        kept: list[_Timed] = []
        sent: list[_Timed] = []
        size = 0
        for key, place in entries:
            keep = place.tick >= hot_since
            page = self.load(key, place) if keep or self._demote else None
            if page is None:
                continue
            (kept if keep else sent).append((key, [memoryview(page)], place.tick))
            size += place.length
            if size >= _MOVE_BYTES:
                self._move(kept, sent)
                kept, sent, size = [], [], 0
        self._move(kept, sent)

    def _hot(self, segment: str) -> int:
        """The last use from which on pages stay. Found anew after a 32nd of the budget has been
        removed; until then it errs towards keeping."""
        if self._hot_bytes_left <= 0:
            self._hot_since = self.index.hot_since(self.budget_bytes * 3 // 4)
            self._hot_bytes_left = self.budget_bytes // 32
        self._hot_bytes_left -= dict(self.index.segments()).get(segment, 0)
        return self._hot_since

    def _move(self, kept: Sequence[_Timed], sent: Sequence[_Timed]) -> None:
        self._append(kept, set())
        if sent and self._demote is not None:
            self._demote([(key, views) for key, views, _ in sent], [tick for *_, tick in sent])


def timed(entries: Sequence[Entry], ticks: Sequence[int] | None) -> list[_Timed]:
    """Entries with the times of their last use; by default now, in order."""
    start = now()
    times = ticks if ticks is not None else range(start, start + len(entries))
    return [(key, views, tick) for (key, views), tick in zip(entries, times, strict=True)]
