"""The reading end: leases on the rows of embeddings, however they travelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from encoders.embedding import Embedding, RowsArray
from encoders.single_flight import SingleFlight
from encoders.store.options import StoreOptions
from encoders.store.reference import Lease, RowsLost, RowsRef, open_rows
from encoders.store.remote import Fetched, fetch
from encoders.store.store import Store


class RowsReader:
    """Opens the rows of embeddings on this node.

    A reference to another node's store is fetched once, however many want it, and kept in this
    node's. `fetch_rows` brings the rows from there and raises `RowsLost`. `store`: None where no
    references come. All methods belong to one event loop.
    """

    def __init__(
        self,
        store: StoreOptions | None,
        fetch_rows: Callable[[RowsRef], Awaitable[Fetched]] = fetch,
    ) -> None:
        self.store: Store | None = store.open() if store is not None else None
        self._fetch = fetch_rows
        self._flights: SingleFlight[Embedding] = SingleFlight(RowsLost)
        self._leases = 0
        self._leased_bytes = 0

    async def open(self, embedding: Embedding) -> RowsArray | Lease:
        """The rows of one embedding; give them back with `close`. Raises `RowsLost`.

        Rows that are neither an array nor a `RowsRef` are awaited (a Ray object reference).
        """
        rows = embedding.rows
        if isinstance(rows, RowsRef):
            rows = await self._here(rows)
        if isinstance(rows, RowsRef):
            lease = open_rows(rows.path, rows.digest)
            self._leases += 1
            self._leased_bytes += lease.size
            return lease
        array: RowsArray = rows if isinstance(rows, RowsArray) else await rows
        return array

    async def open_all(self, embeddings: Sequence[Embedding]) -> list[RowsArray | Lease]:
        """The rows of all embeddings, or of none: a failure gives back what was opened."""
        opened: list[RowsArray | Lease] = []
        try:
            for embedding in embeddings:
                rows = await self.open(embedding)
                opened.append(rows)
        except BaseException:
            self.close(opened)
            raise
        return opened

    def close(self, rows: Sequence[RowsArray | Lease]) -> None:
        """Give leases back. Processes that have mapped the rows keep them."""
        for item in rows:
            if isinstance(item, Lease) and item.open:
                self._leases -= 1
                self._leased_bytes -= item.size
                item.close()

    async def _here(self, rows: RowsRef) -> RowsRef | RowsArray:
        """Rows on this node: the reference itself, one into this node's store, or an array."""
        if self.store is None:
            raise RuntimeError("rows came by reference, but this process has no store")
        if rows.node == self.store.node:
            return rows
        here: RowsRef | RowsArray = (await self.bring(rows)).rows
        return here

    async def bring(self, rows: RowsRef) -> Embedding:
        """The embedding of a reference, in this node's store if it has room. Raises `RowsLost`."""
        return await self._flights.run(rows.digest, lambda: self._bring(rows))

    async def _bring(self, rows: RowsRef) -> Embedding:
        assert self.store is not None
        found = self.store.get(rows.digest)
        if found is not None:
            return found
        fetched = await self._fetch(rows)
        kept = await asyncio.to_thread(self.store.put, fetched.embedding, fetched.seconds)
        return kept or fetched.embedding

    def report(self) -> dict[str, Any]:
        """Leases held now, fetches from other nodes and the store's counters, as plain data."""
        return {
            "leases": self._leases,
            "leased_bytes": self._leased_bytes,
            "fetches": self._flights.stats.flights,
            "store": self.store.report() if self.store is not None else None,
        }
