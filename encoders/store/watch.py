"""Checks in production: the invariants every minute or so, counters to the metrics."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from encoders.store.options import StoreOptions
from encoders.store.store import Store

logger = logging.getLogger(__name__)

_COUNTERS = {
    "hits": "Embeddings found in the node's store",
    "misses": "Embeddings looked for in vain",
    "puts": "Embeddings written",
    "evictions": "Embeddings evicted",
    "too_large": "Embeddings larger than the store",
    "no_space": "Embeddings for which the file system had no room",
    "damaged": "Damaged files removed",
    "bytes_read": "Bytes of embeddings found",
    "bytes_written": "Bytes of embeddings written",
    "bytes_evicted": "Bytes of embeddings evicted",
}


class Flights(Protocol):
    """What is needed of `SingleFlight`."""

    def check(self) -> None: ...

    def report(self) -> dict[str, Any]: ...


class Watch:
    """Checks a store and the flights in front of it every `check_period_s`, in the background.

    A violation is logged and counted, never raised: the store repairs its count, everything else
    is for people to look at. Counters go to Ray's metrics in the same rhythm and not with every
    call; outside of Ray Serve there is nobody to export them. Without options nothing happens.
    """

    def __init__(
        self, options: StoreOptions | None, store: Store | None, flights: Flights | None = None
    ) -> None:
        self.violations = 0
        self._period = options.check_period_s if options is not None else 0.0
        self._store = store
        self._flights = flights
        self._task: asyncio.Task[None] | None = None
        self._export: Callable[[Mapping[str, float], float], None] | None = None

    def start(self) -> None:
        """Begin, in the running event loop; further calls do nothing."""
        if self._task is None and self._store is not None and self._period > 0:
            self._export = _exporter()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period)
            await self.look()

    async def look(self) -> None:
        """One round of checks and metrics."""
        assert self._store is not None
        try:
            if self._flights is not None:
                self._flights.check()
            await asyncio.to_thread(self._store.check)
        except AssertionError as violation:
            self.violations += 1
            logger.error("the embedding store is not consistent: %s", violation)
        except Exception:
            logger.exception("the embedding store could not be checked")
        if self._export is not None:
            report = self._store.report()
            counters = {name: float(report[name]) for name in _COUNTERS}
            counters["violations"] = float(self.violations)
            if self._flights is not None:
                counters["waits"] = float(self._flights.report()["joined"])
            self._export(counters, float(report["used_bytes"]))


def _exporter() -> Callable[[Mapping[str, float], float], None] | None:
    """Adds what counters grew by since the last call to Ray's metrics; None outside of Serve."""
    if "ray.serve" not in sys.modules:
        return None
    from ray.serve import metrics
    from ray.serve.context import _get_internal_replica_context

    if _get_internal_replica_context() is None:
        return None
    texts = {
        **_COUNTERS,
        "violations": "Checks of the store that failed",
        "waits": "Calls that waited for the encode of another",
    }
    made = {
        name: metrics.Counter(f"omniserve_embedding_store_{name}", text)
        for name, text in texts.items()
    }
    used = metrics.Gauge("omniserve_embedding_store_used_bytes", "Bytes in use on the node")
    before: dict[str, float] = dict.fromkeys(texts, 0.0)

    def export(counters: Mapping[str, float], used_bytes: float) -> None:
        for name, value in counters.items():
            if value > before[name]:
                made[name].inc(value - before[name])
                before[name] = value
        used.set(used_bytes)

    return export
