"""The way to an embedding in a replica: cache, else the flight in progress, else encode."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from encoders.cache import EmbeddingCache
from encoders.embedding import Embedding, RowsArray
from encoders.errors import MediaError
from encoders.single_flight import SingleFlight
from encoders.store import RowsReader, RowsRef, StoreOptions
from encoders.store.watch import Watch


@dataclass(frozen=True)
class Encoded:
    """An embedding whose rows are an array, and the seconds of work it takes to have it again."""

    embedding: Embedding
    seconds: float


class EncodeOnce:
    """Encodes every digest once, as long as it is in flight or cached.

    `store`: the node's store, where embeddings are kept for all its processes: they come out with a
    `RowsRef` in place of their rows, unless they are larger than the store. `cache_bytes`: budget
    of a cache in this process, 0 = none; for replicas without a store. `put`: what rows go through
    that leave as an array, cached ones included. All methods belong to one event loop.
    """

    def __init__(
        self,
        cache_bytes: int,
        put: Callable[[RowsArray], Any] | None,
        store: StoreOptions | None = None,
    ) -> None:
        self._reader = RowsReader(store)
        self._store = self._reader.store
        own = cache_bytes if self._store is None else 0
        self._cache = EmbeddingCache(own) if own else None
        self._flights: SingleFlight[Embedding] = SingleFlight(MediaError)
        self._put = put
        self._watch = Watch(store, self._store, self._flights)

    async def get(self, digest: str, encode: Callable[[], Awaitable[Encoded]]) -> Embedding:
        """The embedding of `digest`. Raises what `encode` raises, see `SingleFlight`."""
        self._watch.start()
        found = self._look_up(digest)
        if found is not None:
            return found

        async def compute() -> Embedding:
            encoded = await encode()
            # Several callers will share it: nobody may write into it.
            encoded.embedding.rows.data.setflags(write=False)
            return await self._keep(encoded)

        return self._out(await self._flights.run(digest, compute))

    def find(self, digest: str) -> Embedding | None:
        """The cached embedding of `digest`, or None, which counts as no miss: `get` follows."""
        if self._cache is not None and digest not in self._cache:
            return None
        return self._look_up(digest, count_miss=False)

    async def adopt(self, embedding: Embedding) -> None:
        """Keep an embedding of another node in this one's store. Raises `RowsLost`."""
        if self._store is not None and isinstance(embedding.rows, RowsRef):
            await self._reader.bring(embedding.rows)

    def _look_up(self, digest: str, count_miss: bool = True) -> Embedding | None:
        if self._store is not None:
            return self._store.get(digest, count_miss=count_miss)
        found = self._cache.get(digest) if self._cache is not None else None
        return self._out(found) if found is not None else None

    async def _keep(self, encoded: Encoded) -> Embedding:
        embedding = encoded.embedding
        if self._store is not None:
            kept = await asyncio.to_thread(self._store.put, embedding, encoded.seconds)
            return kept or embedding
        if self._cache is not None:
            self._cache.put(embedding, encoded.seconds)
        return embedding

    def _out(self, embedding: Embedding) -> Embedding:
        if self._put is None or not isinstance(embedding.rows, RowsArray):
            return embedding
        return replace(embedding, rows=self._put(embedding.rows))

    def report(self) -> dict[str, Any]:
        """Counters of the cache (None without one) and the flights, as plain data."""
        kept = self._store if self._store is not None else self._cache
        return {
            "cache": kept.report() if kept is not None else None,
            "single_flight": self._flights.report(),
            "violations": self._watch.violations,
        }

    def check(self) -> None:
        """Raises `AssertionError` when the state of cache or flights is not consistent."""
        if self._store is not None:
            self._store.check()
        if self._cache is not None:
            self._cache.check()
        self._flights.check()

    def close(self) -> None:
        """End the use of the store and the checks."""
        self._watch.stop()
        if self._store is not None:
            self._store.close()
