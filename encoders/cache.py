"""Embeddings kept by digest within a byte budget.

Eviction is GreedyDual-Size (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", USENIX
Symposium on Internet Technologies and Systems 1997): an entry's priority is the clock at its last
use plus cost / size, here seconds to compute again per byte; the lowest priority goes first and
sets the clock. So what was not used for long goes, and of two equally old entries the one that is
cheaper to have back.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

from encoders.embedding import Embedding, RowsArray

# What an entry holds besides its rows: digest, layout, dictionary and heap slots.
ENTRY_BYTES = 1024


@dataclass
class CacheStats:
    """Counters since the start; `too_large` were larger than the whole cache."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    too_large: int = 0


@dataclass(eq=False)
class _Entry:
    embedding: Embedding
    size: int
    value: float  # seconds / byte
    priority: float = 0.0
    ticket: int = 0  # of its one item in the heap that counts


def embedding_bytes(embedding: Embedding) -> int:
    """Bytes an embedding takes in the cache. Raises `TypeError` unless its rows are an array."""
    if not isinstance(embedding.rows, RowsArray):
        raise TypeError(f"only rows as an array are cached, got {type(embedding.rows).__name__}")
    return int(embedding.rows.data.nbytes) + ENTRY_BYTES


class EmbeddingCache:
    """At most `budget` bytes of embeddings. Nothing is ever pinned: a caller holds its own
    reference, so that eviction can always go on. Not for use by several threads at once.

    An embedding's rows must own their memory: a slice would keep its whole array alive, which the
    budget does not see.
    """

    def __init__(self, budget: int) -> None:
        if budget < 0:
            raise ValueError(f"the cache budget must not be negative, got {budget}")
        self.budget = budget
        self.stats = CacheStats()
        self._entries: dict[str, _Entry] = {}
        # (priority, ticket, digest); items of entries that were used since are stale and skipped.
        self._heap: list[tuple[float, int, str]] = []
        self._tickets = 0
        self._used = 0
        self._clock = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, digest: str) -> bool:
        """Whether `digest` is kept; counts as no use."""
        return digest in self._entries

    @property
    def used_bytes(self) -> int:
        return self._used

    def get(self, digest: str) -> Embedding | None:
        """The embedding of `digest`, or None."""
        entry = self._entries.get(digest)
        if entry is None:
            self.stats.misses += 1
            return None
        self.stats.hits += 1
        self._touch(digest, entry)
        return entry.embedding

    def put(self, embedding: Embedding, seconds: float) -> bool:
        """Keep an embedding that takes `seconds` to compute; False if it is larger than the cache.

        An embedding of the same digest is replaced.
        """
        size = embedding_bytes(embedding)
        if size > self.budget:
            self.stats.too_large += 1
            return False
        digest = embedding.digest
        self._forget(digest)
        while self._used + size > self.budget:
            self._evict()
        entry = _Entry(embedding, size, max(seconds, 0.0) / size)
        self._entries[digest] = entry
        self._used += size
        self._touch(digest, entry)
        return True

    def _touch(self, digest: str, entry: _Entry) -> None:
        entry.priority = self._clock + entry.value
        self._tickets += 1
        entry.ticket = self._tickets
        heapq.heappush(self._heap, (entry.priority, entry.ticket, digest))
        if len(self._heap) > 2 * len(self._entries) + 16:
            self._compact()

    def _compact(self) -> None:
        """Drop the stale half of the heap: amortised constant work per use."""
        entries = self._entries.items()
        self._heap = [(entry.priority, entry.ticket, digest) for digest, entry in entries]
        heapq.heapify(self._heap)

    def _evict(self) -> None:
        while True:
            priority, ticket, digest = heapq.heappop(self._heap)
            entry = self._entries.get(digest)
            if entry is not None and entry.ticket == ticket:
                break
        self._clock = priority
        self._forget(digest)
        self.stats.evictions += 1

    def _forget(self, digest: str) -> None:
        entry = self._entries.pop(digest, None)
        if entry is not None:
            self._used -= entry.size

    def report(self) -> dict[str, Any]:
        """Counters and sizes, as plain data."""
        sizes = {"items": len(self), "used_bytes": self._used, "budget_bytes": self.budget}
        return {**vars(self.stats), **sizes}

    def check(self) -> None:
        """Raises `AssertionError` when sizes, budget and the eviction order do not agree."""
        sizes = [embedding_bytes(entry.embedding) for entry in self._entries.values()]
        if sizes != [entry.size for entry in self._entries.values()]:
            raise AssertionError("an entry's size is not that of its embedding")
        if sum(sizes) != self._used or self._used > self.budget:
            total = sum(sizes)
            raise AssertionError(f"{total} bytes kept, {self._used} counted of {self.budget}")
        queued = set(self._heap)
        for digest, entry in self._entries.items():
            if entry.embedding.digest != digest:
                raise AssertionError(f"{digest} holds the embedding of {entry.embedding.digest}")
            if (entry.priority, entry.ticket, digest) not in queued:
                raise AssertionError(f"{digest} cannot be evicted")
