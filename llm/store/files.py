"""Reading and writing whole entries in segment files, without a copy in between."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from llm.store.entry import HEADER_BYTES, Views, header, is_intact, size_of

# Far below the limit of open files; a miss costs one open().
_MAX_OPEN = 128
_MAX_PARTS = 512
# Bytes of one write, unless a page is larger: what was hashed for its header is still in the cache.
_MAX_BYTES = 1 << 20


class Readers:
    """Open segment files of a tier, the least recently used closed first. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, segment: str, offset: int, key: bytes, views: Views) -> bool:
        """Fill ``views`` with an entry's page. False (and ``views`` undefined) if the entry is not
        whole, or not this key's. Raises OSError; FileNotFoundError for an evicted segment.
        """
        found = bytearray(HEADER_BYTES)
        parts: list[bytearray | memoryview] = [found, *views]
        wanted = HEADER_BYTES + size_of(views)
        if os.preadv(self._file(segment), parts, offset) != wanted:
            return False
        return is_intact(found, key, views)

    def forget(self, segment: str) -> None:
        descriptor = self._open.pop(segment, None)
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for segment in list(self._open):
            self.forget(segment)

    def _file(self, segment: str) -> int:
        if segment in self._open:
            self._open.move_to_end(segment)
            return self._open[segment]
        descriptor = os.open(self._directory / segment, os.O_RDONLY | os.O_CLOEXEC)
        self._open[segment] = descriptor
        if len(self._open) > _MAX_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return descriptor


class Writer:
    """The segment that this process appends to. Not thread-safe."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises OSError, FileExistsError if the name is taken."""
        self.name = name
        self.end = 0
        self._path = directory / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)

    def append(self, entries: Sequence[tuple[bytes, Views]]) -> list[tuple[bytes, int, int]]:
        """Write entries behind each other; (key, offset, length) of each.

        Raises OSError; what was written by then is dead space that no index names.
        """
        rows: list[tuple[bytes, int, int]] = []
        parts: list[bytes | memoryview] = []
        start = self.end
        for key, views in entries:
            rows.append((key, self.end, size_of(views)))
            parts += [header(key, views), *views]
            self.end += HEADER_BYTES + rows[-1][2]
            if len(parts) >= _MAX_PARTS or self.end - start >= _MAX_BYTES:
                self._write(parts, start)
                parts, start = [], self.end
        if parts:
            self._write(parts, start)
        return rows

    def in_place(self) -> bool:
        """Whether the file is still in its directory."""
        try:
            return os.stat(self._path).st_ino == os.fstat(self._descriptor).st_ino
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, parts: list[bytes | memoryview], offset: int) -> None:
        total = sum(memoryview(part).nbytes for part in parts)
        written = os.pwritev(self._descriptor, parts, offset)
        if written == total:
            return
        # A short write is rare (a nearly full disk): go on in one piece, which then says why.
        rest = memoryview(b"".join(parts))[written:]
        while rest:
            offset += written
            written = os.pwrite(self._descriptor, rest, offset)
            rest = rest[written:]
