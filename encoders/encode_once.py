"""The way to an embedding in a replica: cache, else the flight in progress, else encode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from encoders.cache import EmbeddingCache
from encoders.embedding import Embedding, RowsArray
from encoders.errors import MediaError
from encoders.single_flight import SingleFlight


@dataclass(frozen=True)
class Encoded:
    """An embedding whose rows are an array, and the seconds of work it takes to have it again."""

    embedding: Embedding
    seconds: float


class EncodeOnce:
    """Encodes every digest once, as long as it is in flight or in the cache.

    `cache_bytes`: budget of the cache, 0 = none. `put`: what rows go through on their way out, hits
    included. All methods belong to one event loop.
    """

    def __init__(self, cache_bytes: int, put: Callable[[RowsArray], Any] | None) -> None:
        self._cache = EmbeddingCache(cache_bytes) if cache_bytes else None
        self._flights: SingleFlight[Embedding] = SingleFlight(MediaError)
        self._put = put

    async def get(self, digest: str, encode: Callable[[], Awaitable[Encoded]]) -> Embedding:
        """The embedding of `digest`. Raises what `encode` raises, see `SingleFlight`."""
        found = self._cache.get(digest) if self._cache is not None else None
        if found is not None:
            return self._out(found)

        async def compute() -> Embedding:
            encoded = await encode()
            # Several callers will share it: nobody may write into it.
            encoded.embedding.rows.data.setflags(write=False)
            if self._cache is not None:
                self._cache.put(encoded.embedding, encoded.seconds)
            return encoded.embedding

        return self._out(await self._flights.run(digest, compute))

    def find(self, digest: str) -> Embedding | None:
        """The cached embedding of `digest`, or None, which counts as no miss: `get` follows."""
        if self._cache is None or digest not in self._cache:
            return None
        found = self._cache.get(digest)
        return self._out(found) if found is not None else None

    def _out(self, embedding: Embedding) -> Embedding:
        if self._put is None:
            return embedding
        return replace(embedding, rows=self._put(embedding.rows))

    def report(self) -> dict[str, Any]:
        """Counters of the cache (None without one) and the flights, as plain data."""
        cache = self._cache.report() if self._cache is not None else None
        return {"cache": cache, "single_flight": self._flights.report()}

    def check(self) -> None:
        """Raises `AssertionError` when the state of cache or flights is not consistent."""
        if self._cache is not None:
            self._cache.check()
        self._flights.check()
