"""Where each entry of a tier lies: a SQLite database that all processes of a node share.

SQLite brings what an index of several processes needs: transactions that survive a killed writer,
one writer at a time, readers that never wait for it, and errors (not a crash) when the file is
full, read-only, damaged or gone. Payloads lie in plain files beside it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from llm.store.entry import HEADER_BYTES

_VERSION = 1
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE NOT NULL, bytes INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS entries (
    key BLOB PRIMARY KEY, segment INTEGER NOT NULL, offset INTEGER NOT NULL,
    length INTEGER NOT NULL, tick INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_by_segment ON entries (segment);
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_CHUNK = 500


class Place(NamedTuple):
    """An entry's segment file, offset of its header, payload bytes and last use (ns)."""

    segment: str
    offset: int
    length: int
    tick: int


class Index:
    """The index of one tier. Methods raise sqlite3.Error; a busy database does after a time-out."""

    def __init__(self, path: Path, timeout_s: float, durable: bool) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(
            path, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )
        # A long scan has a connection of its own, so that look-ups need not wait for it.
        self._scan = sqlite3.connect(
            path, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {'NORMAL' if durable else 'OFF'}")
            self._connection.executescript(_SCHEMA)
            found = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if found != _VERSION:
                raise sqlite3.DatabaseError(f"{path} has version {found}, not {_VERSION}")
            self._inode = os.stat(path).st_ino
        except BaseException:
            self._connection.close()
            self._scan.close()
            raise

    def in_place(self) -> bool:
        """Whether the file that is open is still the one at the path."""
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Close, also while another thread hangs in a statement."""
        held = self._lock.acquire(timeout=self._timeout_s)
        self._connection.close()
        self._scan.close()
        if held:
            self._lock.release()

    @contextmanager
    def _held(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=self._timeout_s):
            error = sqlite3.OperationalError("the index is busy in another thread")
            error.sqlite_errorname = "SQLITE_BUSY"
            raise error
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction; rolled back when the block raises."""
        with self._held():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Place]:
        """Places of those keys that are there."""
        found: dict[bytes, Place] = {}
        with self._held():
            for start in range(0, len(keys), _CHUNK):
                part = keys[start : start + _CHUNK]
                marks = ",".join("?" * len(part))
                rows = self._connection.execute(
                    "SELECT key, name, offset, length, tick FROM entries "
                    f"JOIN segments ON segments.id = segment WHERE key IN ({marks})",
                    part,
                )
                found.update((key, Place(*place)) for key, *place in rows)
        return found

    def add_segment(self, name: str) -> None:
        with self.transaction() as sql:
            sql.execute("INSERT INTO segments (name, bytes) VALUES (?, 0)", (name,))

    def add(self, segment: str, end: int, rows: Sequence[tuple[bytes, int, int, int]]) -> bool:
        """Record entries (key, offset, length, tick) of a segment that now has ``end`` bytes; of
        one that is known already the later tick stays.

        False, and nothing recorded, if the segment was evicted meanwhile.
        """
        with self.transaction() as sql:
            found = sql.execute("SELECT id FROM segments WHERE name = ?", (segment,)).fetchone()
            if found is None:
                return False
            sql.execute("UPDATE segments SET bytes = ? WHERE id = ?", (end, found[0]))
            sql.executemany(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
                "segment = excluded.segment, offset = excluded.offset, length = excluded.length, "
                "tick = max(tick, excluded.tick)",
                [(key, found[0], *place) for key, *place in rows],
            )
        return True

    def touch(self, ticks: Iterable[tuple[bytes, int]]) -> None:
        """Set the last use of (key, tick) pairs, of the keys that are there."""
        with self.transaction() as sql:
            sql.executemany(
                "UPDATE entries SET tick = ?2 WHERE key = ?1 AND tick < ?2", list(ticks)
            )

    def forget(self, key: bytes, place: Place) -> None:
        """Remove an entry if it still lies where it was found."""
        with self.transaction() as sql:
            sql.execute(
                "DELETE FROM entries WHERE key = ? AND offset = ? AND segment = "
                "(SELECT id FROM segments WHERE name = ?)",
                (key, place.offset, place.segment),
            )

    def total(self) -> int:
        """Bytes of all segments."""
        with self._held():
            rows = self._connection.execute("SELECT COALESCE(SUM(bytes), 0) FROM segments")
            return int(rows.fetchone()[0])

    def count(self) -> tuple[int, int]:
        """Entries and the bytes of their payloads."""
        with self._held():
            row = self._connection.execute(
                "SELECT COUNT(*), COALESCE(SUM(length), 0) FROM entries"
            ).fetchone()
        return int(row[0]), int(row[1])

    def segments(self) -> list[tuple[str, int]]:
        """(name, bytes), oldest first."""
        with self._held():
            return list(self._connection.execute("SELECT name, bytes FROM segments ORDER BY id"))

    def of_segment(self, name: str) -> list[tuple[bytes, Place]]:
        """The entries of a segment in the order of their offsets."""
        with self._held():
            rows = self._connection.execute(
                "SELECT key, offset, length, tick FROM entries JOIN segments "
                "ON segments.id = segment WHERE name = ? ORDER BY offset",
                (name,),
            )
            return [(key, Place(name, *place)) for key, *place in rows]

    def hot_since(self, limit: int) -> int:
        """The last use from which on the entries on disk sum up to at most ``limit`` bytes.

        Reads the whole index; one thread at a time.
        """
        rows = self._scan.execute("SELECT length, tick FROM entries ORDER BY tick DESC")
        for length, tick in rows:
            limit -= length + HEADER_BYTES
            if limit < 0:
                rows.close()
                return int(tick) + 1
        return 0

    def remove_segment(self, name: str) -> int:
        """Remove a segment and the entries that are still in it; how many these were."""
        with self.transaction() as sql:
            gone = sql.execute(
                "DELETE FROM entries WHERE segment = (SELECT id FROM segments WHERE name = ?)",
                (name,),
            )
            sql.execute("DELETE FROM segments WHERE name = ?", (name,))
        return gone.rowcount


def now() -> int:
    """A point in time that all processes of a node order alike, ns."""
    return time.time_ns()
