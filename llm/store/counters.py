"""What a tier did since its process began, for metrics."""

from __future__ import annotations

import errno
import sqlite3
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class TierCounters:
    """Entries are pages of one pool; bytes are those of pages."""

    hits: int = 0
    misses: int = 0
    read_bytes: int = 0
    written: int = 0
    written_bytes: int = 0
    evicted: int = 0
    moved_in: int = 0
    corrupt: int = 0
    timeouts: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def failed(self, error: BaseException) -> None:
        """Count an error under its kind: an errno's name, SQLite's name, or the class."""
        if isinstance(error, OSError) and error.errno is not None:
            kind = errno.errorcode.get(error.errno, str(error.errno))
        elif isinstance(error, sqlite3.Error):
            kind = getattr(error, "sqlite_errorname", None) or "SQLITE"
        else:
            kind = type(error).__name__
        self.errors[kind] += 1

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"errors": dict(self.errors)}
