"""The embedding cache of a node: a directory of files in shared memory.

The directory is the index. A file's name is its digest; its modification time is its eviction
priority and its access time the last use, both set by us. So there is nothing that could disagree
with the files after a crash, and a hit takes no lock.

Eviction is GreedyDual-Size as in `encoders.cache`: the priority is the clock at the last use plus
seconds to compute again per byte, the lowest goes first and sets the clock.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from time import time_ns
from typing import Any

from encoders.embedding import Embedding, RowsArray
from encoders.store import directory as directories
from encoders.store.format import Damaged, Head, can_store, charge, pack_head, read_head
from encoders.store.ledger import Ledger
from encoders.store.reference import Lease, RowsRef, open_rows

# Priorities are whole numbers: seconds / byte in units of 1e-15.
SCALE = 1e15
# Eviction frees this share of the budget beyond need, so that few writers have to look at all
# files: at 1/32, a store of 8000 embeddings scans once in 250 writes.
SLACK = 32
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)


@dataclass
class StoreStats:
    """Counters of this process since its start.

    `bytes_read` are those of hits, which nobody copied; `too_large` were larger than the whole
    store and `no_space` found the file system full: both are served uncached. `damaged` files were
    removed; `known` writes found the key already there.
    """

    hits: int = 0
    misses: int = 0
    puts: int = 0
    known: int = 0
    evictions: int = 0
    too_large: int = 0
    no_space: int = 0
    damaged: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_evicted: int = 0


@dataclass(frozen=True)
class _File:
    priority: int
    used: int  # nanoseconds
    name: str
    charge: int


class Store:
    """At most `budget` bytes of embeddings in `directory`, shared by every process that opens it.

    All processes must give the same budget. `node`: the id that references carry, see `RowsRef`.
    Methods may be called from any thread. `get` takes microseconds and no lock; `put` copies the
    rows once into memory (call it in a thread where an event loop runs). Closing the last user's
    store removes the directory.
    """

    def __init__(self, directory: str | Path, budget: int, node: str = "") -> None:
        if budget < 0:
            raise ValueError(f"the store's budget must not be negative, got {budget}")
        self.directory = Path(directory)
        self.budget = budget
        self.node = node
        self.stats = StoreStats()
        self._prefix = f"{self.directory}{os.sep}"
        directories.sweep(self.directory.parent)
        self._users = directories.join(self.directory)
        self._ledger = Ledger(self.directory, lambda: sum(f.charge for f in self._files()))
        self._closed = False

    def get(self, digest: str, *, count_miss: bool = True) -> Embedding | None:
        """The embedding of `digest` with a `RowsRef` as its rows, or None. Counts as a use."""
        try:
            descriptor = os.open(self._path(digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
        except FileNotFoundError:
            self.stats.misses += count_miss
            return None
        try:
            head = read_head(descriptor)
            size = os.fstat(descriptor).st_size
            _touch(descriptor, self._ledger.peek()[1], head.seconds, charge(size))
        except Damaged:
            self._drop_damaged(digest)
            self.stats.misses += count_miss
            return None
        finally:
            os.close(descriptor)
        self.stats.hits += 1
        self.stats.bytes_read += size - head.offset
        return Embedding(head.modality, digest, head.layout, self._reference(head))

    def __contains__(self, digest: str) -> bool:
        """Whether `digest` is kept; counts as no use."""
        return os.path.exists(self._path(digest))

    def open(self, digest: str) -> Lease:
        """A lease on the rows of `digest`. Raises `RowsLost`. Counts as no use."""
        return open_rows(self._path(digest), digest)

    def put(self, embedding: Embedding, seconds: float) -> Embedding | None:
        """Keep an embedding whose rows are an array and take `seconds` to compute.

        Returns it with a reference in place of the rows. None: it is larger than the store or the
        file system is full, so that it has to travel by value. The first writer of a digest wins.
        Raises `TypeError` for rows that are no array or not in order.
        """
        rows = embedding.rows
        if not isinstance(rows, RowsArray) or not can_store(rows):
            raise TypeError(f"only whole arrays of rows are stored, got {type(rows).__name__}")
        head = pack_head(embedding, rows, max(seconds, 0.0))
        size = charge(len(head) + rows.data.nbytes)
        if size > self.budget:
            self.stats.too_large += 1
            return None
        try:
            # Without a name until it is whole: a writer that dies leaves nothing behind.
            descriptor = os.open(self.directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the directory was taken away under us
            self.stats.no_space += 1
            return None
        try:
            _write(descriptor, head, rows)
            self._publish(descriptor, embedding.digest, max(seconds, 0.0), size)
        except OSError as failure:
            if failure.errno not in _FULL:
                raise
            self.stats.no_space += 1
            return None
        finally:
            os.close(descriptor)
        count, hidden = (int(side) for side in rows.data.shape)
        reference = RowsRef(
            embedding.digest, self.node, str(self.directory), count, hidden, rows.dtype
        )
        return Embedding(embedding.modality, embedding.digest, embedding.layout, reference)

    def _publish(self, descriptor: int, digest: str, seconds: float, size: int) -> None:
        path = self._path(digest)
        with self._ledger.change():
            if os.path.exists(path):
                self.stats.known += 1
                return
            if self._ledger.used + size > self.budget:
                self._evict(size)
            _touch(descriptor, self._ledger.clock, seconds, size)
            # A descriptor makes Python call linkat, which alone follows the link in /proc.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
            self._ledger.used += size
        self.stats.puts += 1
        self.stats.bytes_written += size

    def _evict(self, need: int) -> None:
        """Make room for `need` bytes and some more. Called with the ledger's lock."""
        files = sorted(self._files(), key=lambda file: (file.priority, file.used))
        used = sum(file.charge for file in files)
        most = max(0, self.budget - need - self.budget // SLACK)
        for file in files:
            if used <= most:
                break
            with suppress(FileNotFoundError):
                os.unlink(self.directory / file.name)
            used -= file.charge
            self._ledger.clock = max(self._ledger.clock, file.priority)
            self.stats.evictions += 1
            self.stats.bytes_evicted += file.charge
        self._ledger.used = used

    def _files(self) -> list[_File]:
        found = []
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append(
                        _File(
                            status.st_mtime_ns,
                            status.st_atime_ns,
                            entry.name,
                            charge(status.st_size),
                        )
                    )
        return found

    def _drop_damaged(self, digest: str) -> None:
        with self._ledger.change():
            self._remove(digest)
        self.stats.damaged += 1

    def _remove(self, digest: str) -> None:
        path = self._path(digest)
        with suppress(FileNotFoundError):
            size = os.stat(path).st_size
            os.unlink(path)
            self._ledger.used -= charge(size)

    def _path(self, digest: str) -> str:
        if not digest.isalnum():
            raise ValueError("a digest is made of letters and digits")
        return f"{self._prefix}{digest}"

    def _reference(self, head: Head) -> RowsRef:
        return RowsRef(
            head.digest, self.node, str(self.directory), head.rows, head.hidden, head.dtype
        )

    def report(self) -> dict[str, Any]:
        """Counters of this process, and the bytes in use by all, as plain data."""
        counters = {f.name: getattr(self.stats, f.name) for f in dataclass_fields(StoreStats)}
        used, _ = self._ledger.peek()
        return {**counters, "used_bytes": used, "budget_bytes": self.budget}

    def check(self) -> None:
        """Raises `AssertionError` when files, their descriptions and the used bytes disagree; the
        used bytes are then right again.
        """
        with self._ledger.change():
            files, used = self._files(), self._ledger.used
            total = self._ledger.used = sum(file.charge for file in files)
        if total != used or used > self.budget:
            raise AssertionError(f"{total} bytes in files, {used} counted of {self.budget}")
        for file in files:
            with suppress(FileNotFoundError):  # evicted meanwhile
                self._check_file(file.name)

    def _check_file(self, name: str) -> None:
        descriptor = os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
        try:
            digest = read_head(descriptor).digest
        except Damaged as damage:
            raise AssertionError(f"{name}: {damage}") from None
        finally:
            os.close(descriptor)
        if digest != name:
            raise AssertionError(f"{name} holds the embedding of {digest}")

    def close(self) -> None:
        """End this process's use."""
        if not self._closed:
            self._closed = True
            self._ledger.close()
            directories.leave(self.directory, self._users)

    def __del__(self) -> None:
        if getattr(self, "_closed", True) is False:
            with suppress(Exception):
                self.close()


def _touch(descriptor: int, clock: int, seconds: float, size: int) -> None:
    """Mark a file as used now."""
    os.utime(descriptor, ns=(time_ns(), clock + round(seconds / size * SCALE)))


def _write(descriptor: int, head: bytes, rows: RowsArray) -> None:
    """Head and rows into an empty file: the one copy that a store makes."""
    left = [memoryview(head), rows.data.data.cast("B")]
    while left:
        done = os.writev(descriptor, left)
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left and done:
            left[0] = left[0][done:]
