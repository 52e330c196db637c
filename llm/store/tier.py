"""One tier of the store: a `SegmentLog` that never fails its caller."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from llm.store.counters import TierCounters
from llm.store.entry import Views, size_of
from llm.store.index import now
from llm.store.log import Demote, Entry, SegmentLog, timed

# Noted uses that are written to the index at once.
_TOUCHES = 256
_BROKEN = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}
_BUSY = {"SQLITE_BUSY", "SQLITE_LOCKED"}


class Tier:
    """Thread-safe. No method raises for the file system's sake: a fault is a miss or a page not
    stored, it is counted, and the tier is left alone for ``retry_s`` seconds.
    """

    def __init__(
        self,
        directory: Path,
        budget_bytes: int,
        *,
        durable: bool = True,
        timeout_s: float = 0.5,
        retry_s: float = 5.0,
        demote: Demote | None = None,
    ) -> None:
        """``durable``: keep the index sound across a power cut (a tier in memory needs not).

        ``timeout_s``: how long one call may take; what it has not read by then is a miss.
        ``demote``: takes the pages that leave, with the times of their last use.
        """
        self.directory = directory
        self.budget_bytes = budget_bytes
        self.counters = TierCounters()
        self._open = partial(
            SegmentLog,
            directory,
            budget_bytes,
            durable=durable,
            timeout_s=timeout_s,
            counters=self.counters,
            demote=demote,
        )
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._log: SegmentLog | None = None
        self._opening = threading.RLock()
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._noting = threading.Lock()
        self._touched: dict[bytes, int] = {}
        self._down_until = self._full_until = 0.0
        self._read_began: float | None = None

    def find(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of ``keys`` that are there. Nothing while an earlier read hangs."""
        began = self._read_began
        if began is not None and time.monotonic() - began > self._timeout_s:
            self.counters.timeouts += 1
            return set()
        found: set[bytes] = set()
        with self._guard() as log:
            if log is not None:
                found.update(log.index.find(keys))
        return found

    def get(self, keys: Sequence[bytes], views: Sequence[Views]) -> list[bool]:
        """Read pages into ``views``; which are there, whole. The other views are undefined."""
        done = [False] * len(keys)
        with self._reading:
            self._read_began = time.monotonic()
            try:
                with self._guard() as log:
                    if log is not None:
                        log.read(keys, views, done)
            finally:
                self._read_began = None
        read = [i for i, ok in enumerate(done) if ok]
        self.counters.hits += len(read)
        self.counters.misses += len(keys) - len(read)
        self.counters.read_bytes += sum(size_of(views[i]) for i in read)
        self.touch([keys[i] for i in read])
        return done

    def put(
        self, entries: Sequence[Entry], ticks: Sequence[int] | None = None, wait: bool = True
    ) -> list[bool]:
        """Store pages; which of them are now there. One that is there already is only touched.

        ``ticks``: times of last use (ns), now if not given. Without ``wait`` nothing is stored
        while another thread stores.
        """
        stored: set[bytes] = set()
        if time.monotonic() >= self._full_until and self._writing.acquire(blocking=wait):
            try:
                with self._guard(writing=True) as log:
                    if log is not None:
                        self._write_touches(log)
                        log.write(timed(entries, ticks), stored)
                        log.make_room()
            finally:
                self._writing.release()
        return [key in stored for key, _ in entries]

    def touch(self, keys: Sequence[bytes]) -> None:
        """Note that pages were used; keys that are not there do no harm."""
        tick = now()
        with self._noting:
            self._touched.update((key, tick + i) for i, key in enumerate(keys))
            due = len(self._touched) >= _TOUCHES
        if due:
            self.flush()

    def flush(self) -> None:
        """Write noted uses to the index."""
        with self._guard() as log:
            if log is not None:
                self._write_touches(log)

    def close(self) -> None:
        """Write noted uses and release the files; the tier opens again when used."""
        self.flush()
        self._forget()

    @property
    def available(self) -> bool:
        """Whether the tier is in use, as opposed to left alone after a fault."""
        return time.monotonic() >= max(self._down_until, self._full_until)

    def stats(self) -> dict[str, Any]:
        """Counters of this process and the tier's size, for metrics."""
        found: dict[str, Any] = self.counters.document() | {"budget_bytes": self.budget_bytes}
        with self._guard() as log:
            if log is not None:
                entries, payload = log.index.count()
                found |= {"entries": entries, "payload_bytes": payload, "bytes": log.index.total()}
        return found | {"available": self.available}

    def check(self, deep: bool = False) -> None:
        """Raises AssertionError if index and files disagree or the budget is exceeded; ``deep``
        reads every page. Call while nobody writes.
        """
        self._opened().check(deep)

    @contextmanager
    def _guard(self, writing: bool = False) -> Iterator[SegmentLog | None]:
        """The open log, or None while the tier is left alone; faults end here."""
        log: SegmentLog | None = None
        try:
            if time.monotonic() >= self._down_until:
                log = self._opened()
        except (OSError, sqlite3.Error) as error:
            self._fault(error, writing=False)
        try:
            yield log
        except (OSError, sqlite3.Error) as error:
            self._fault(error, writing)

    def _fault(self, error: OSError | sqlite3.Error, writing: bool) -> None:
        self.counters.failed(error)
        kind = getattr(error, "sqlite_errorname", "")
        if kind in _BUSY:
            self.counters.timeouts += 1
            return
        if writing and kind not in _BROKEN:
            # A full or read-only disk can still be read.
            self._full_until = time.monotonic() + self._retry_s
            if self._log is not None:
                self._log.drop_writer()
            return
        self._down_until = time.monotonic() + self._retry_s
        self._forget()
        if kind in _BROKEN:
            self._discard()

    def _opened(self) -> SegmentLog:
        with self._opening:
            if self._log is not None and not self._log.in_place():
                self.counters.errors["LOST"] += 1
                self._forget()
            if self._log is None:
                self._log = self._open()
                # A writer that was killed had stored pages and not yet made room for them.
                self._log.make_room()
            return self._log

    def _forget(self) -> None:
        with self._opening:
            if self._log is not None:
                self._log.close()
                self._log = None

    def _discard(self) -> None:
        """Remove a damaged tier; it is a cache."""
        for pattern in ("index*", "*.seg"):
            for path in self.directory.glob(pattern):
                path.unlink(missing_ok=True)

    def _write_touches(self, log: SegmentLog) -> None:
        with self._noting:
            touched, self._touched = self._touched, {}
        if touched:
            log.index.touch(touched.items())
