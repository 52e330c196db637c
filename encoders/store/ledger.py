"""What all processes must agree on: bytes in use and the eviction clock, under one lock.

The lock is the kernel's and ends with its holder. A holder that died in the middle of a change
leaves the ledger marked open; whoever comes next counts the files anew.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = ".ledger"
_FIELDS = struct.Struct("<qqq")  # open, used, clock


class Ledger:
    """`used` bytes and `clock`, to be read and written inside `change` alone.

    `recount() -> used bytes` looks at the files.
    """

    def __init__(self, directory: Path, recount: Callable[[], int]) -> None:
        self._recount = recount
        self._file = os.open(directory / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._threads = threading.Lock()
        with self._lock():
            if os.fstat(self._file).st_size < _FIELDS.size:
                os.posix_fallocate(self._file, 0, _FIELDS.size)
            self._memory = mmap.mmap(self._file, _FIELDS.size)
        self.used = 0
        self.clock = 0

    @contextmanager
    def change(self) -> Iterator[None]:
        """Hold the lock; what is set on leaving holds for everybody. Kept short: others wait."""
        with self._lock():
            was_open, self.used, self.clock = _FIELDS.unpack_from(self._memory)
            if was_open:
                self.used = self._recount()
            _FIELDS.pack_into(self._memory, 0, 1, self.used, self.clock)
            yield  # an exception leaves it open: the next change counts
            _FIELDS.pack_into(self._memory, 0, 0, self.used, self.clock)

    def peek(self) -> tuple[int, int]:
        """Used bytes and clock as they are now, without the lock."""
        _, used, clock = _FIELDS.unpack_from(self._memory)
        return used, clock

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._memory.close()
        os.close(self._file)
