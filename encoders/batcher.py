"""Batches across requests: items of different users share one forward pass.

One batcher serves one modality in one replica. Everything is driven by events: a submission or the
end of a forward pass starts the next batch; nothing polls and no task outlives its work, so there
is no loop that a cancellation could kill.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


class BatcherClosed(RuntimeError):
    """The batcher was closed before it could take or finish the item."""


@dataclass(frozen=True)
class BatchLimits:
    """Bounds of one batch.

    `max_work`: sum of the items' work (patch tokens, audio frames); a heavier item runs alone.
    `max_items`: number of items. `max_wait`: longest time in seconds that a batch is held back to
    fill up, which happens only between two passes under load; an idle batcher never waits.
    """

    max_work: int
    max_items: int = 64
    max_wait: float = 0.005

    def __post_init__(self) -> None:
        for name in ("max_work", "max_items"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.max_wait <= 1:
            raise ValueError(f"max_wait must be within 0..1 s, got {self.max_wait}")


@dataclass
class BatchStats:
    """Counters since the start. `sizes` is the histogram of items per forward pass."""

    items: int = 0
    batches: int = 0
    failed: int = 0
    cancelled: int = 0
    work: int = 0
    forward_seconds: float = 0.0
    sizes: Counter[int] = field(default_factory=Counter)

    @property
    def mean_size(self) -> float:
        return self.items / self.batches if self.batches else 0.0

    @property
    def seconds_per_work(self) -> float:
        """Mean time in the forward pass of one unit of work, however full the batches were."""
        return self.forward_seconds / self.work if self.work else 0.0


@dataclass(eq=False)
class _Entry(Generic[In, Out]):
    item: In
    work: int
    done: asyncio.Future[Out]


class Batcher(Generic[In, Out]):
    """Collects items and runs `forward(items) -> results` (same length and order) in a thread.

    While a pass runs, the next batch collects. If a pass fails, its items are run again one by one,
    so that only the guilty item's caller sees the exception. A caller that is cancelled takes its
    item out of the queue; if it is already in a pass, the result is dropped. All methods belong to
    one event loop.
    """

    def __init__(
        self,
        forward: Callable[[Sequence[In]], Sequence[Out]],
        limits: BatchLimits,
        *,
        name: str = "batcher",
    ) -> None:
        self.limits = limits
        self.stats = BatchStats()
        self._forward = forward
        self._queue: deque[_Entry[In, Out]] = deque()
        self._queued_work = 0
        self._runner: asyncio.Task[None] | None = None
        self._grown = asyncio.Event()
        self._closed = False
        self._last_size = 0
        self._last_seconds = 0.0
        # One thread: passes of one modality never compete with each other for the device.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    @property
    def queued_items(self) -> int:
        return len(self._queue)

    @property
    def queued_work(self) -> int:
        """Work of the items that wait, without those in a pass."""
        return self._queued_work

    def warm_up(self, items: Sequence[In]) -> None:
        """Run one pass now, in the thread that will run all others; not counted. Blocks."""
        self._thread.submit(self._forward, items).result()

    def report(self) -> dict[str, Any]:
        """Counters, the histogram of batch sizes and the queue, as plain data."""
        stats = self.stats
        return {
            "items": stats.items,
            "batches": stats.batches,
            "mean_batch_size": stats.mean_size,
            "batch_sizes": dict(sorted(stats.sizes.items())),
            "work": stats.work,
            "failed": stats.failed,
            "cancelled": stats.cancelled,
            "forward_seconds": stats.forward_seconds,
            "queued_items": self.queued_items,
            "queued_work": self.queued_work,
        }

    async def submit(self, item: In, work: int) -> Out:
        """The result of `item`, whose share of a batch is `work`.

        Raises what `forward` raises for this item alone, or `BatcherClosed`.
        """
        if self._closed:
            raise BatcherClosed("the batcher is closed")
        entry: _Entry[In, Out] = _Entry(item, work, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        self._queued_work += work
        self._grown.set()
        if self._runner is None:
            # An empty context: the runner serves everybody, not the request that woke it.
            self._runner = asyncio.create_task(self._run(), context=Context())
        try:
            return await entry.done
        except asyncio.CancelledError:
            self._drop(entry)
            raise

    async def close(self) -> None:
        """Fail everything that waits, let the pass in progress end, free the thread."""
        self._closed = True
        self._fail_queue()
        self._grown.set()
        if self._runner is not None:
            await asyncio.wait([self._runner])
        self._thread.shutdown(wait=False)

    def _fail_queue(self) -> None:
        while self._queue:
            _fail(self._take(), BatcherClosed("the batcher closed while the item waited"))

    async def _run(self) -> None:
        """Run batches until the queue is empty."""
        loaded = False
        try:
            while self._queue:
                if loaded:
                    await self._fill_up()
                batch = self._collect()
                if batch:
                    await self._pass(batch)
                loaded = True
                # Callers wake up before the next batch is cut: their next items may join it.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            # Only the end of the event loop cancels the runner: nobody would run the rest.
            self._fail_queue()
            raise
        finally:
            self._runner = None

    async def _fill_up(self) -> None:
        """Hold the next batch back for the callers that the last pass has just answered.

        Only for batches smaller than the last one, and for no longer than a tenth of the last pass
        (at most `max_wait`): the price in latency stays below what the fuller batch saves.
        """
        wait = min(self.limits.max_wait, self._last_seconds / 10)
        until = asyncio.get_running_loop().time() + wait
        while len(self._queue) < self._last_size and not self._full() and not self._closed:
            rest = until - asyncio.get_running_loop().time()
            if rest <= 0:
                return
            self._grown.clear()
            try:
                await asyncio.wait_for(self._grown.wait(), rest)
            except TimeoutError:
                return

    def _full(self) -> bool:
        over = self._queued_work >= self.limits.max_work
        return over or len(self._queue) >= self.limits.max_items

    def _collect(self) -> list[_Entry[In, Out]]:
        """The longest run from the head of the queue within the limits (at least one item)."""
        batch: list[_Entry[In, Out]] = []
        work = 0
        while self._queue and len(batch) < self.limits.max_items:
            if batch and work + self._queue[0].work > self.limits.max_work:
                break
            entry = self._take()
            if not entry.done.done():  # else its caller is gone
                work += entry.work
                batch.append(entry)
        return batch

    def _take(self) -> _Entry[In, Out]:
        entry = self._queue.popleft()
        self._queued_work -= entry.work
        return entry

    def _drop(self, entry: _Entry[In, Out]) -> None:
        """Forget an item whose caller is gone."""
        self.stats.cancelled += 1
        if entry in self._queue:
            self._queue.remove(entry)
            self._queued_work -= entry.work

    async def _pass(self, batch: Sequence[_Entry[In, Out]]) -> None:
        """One forward pass; after a failure one pass per item."""
        try:
            results = await self._forward_in_thread([entry.item for entry in batch])
        except asyncio.CancelledError:
            for entry in batch:
                _fail(entry, BatcherClosed("the event loop ended while the item was encoded"))
            raise
        except BaseException as error:
            if len(batch) == 1:
                self.stats.failed += 1
                # A thread's SystemExit must not take the loop with it.
                ordinary = isinstance(error, Exception)
                _fail(batch[0], error if ordinary else RuntimeError(f"pass ended by {error!r}"))
                return
            for entry in batch:
                if not entry.done.done():
                    await self._pass([entry])
            return
        stats = self.stats
        stats.items += len(batch)
        stats.batches += 1
        stats.sizes[len(batch)] += 1
        stats.work += sum(entry.work for entry in batch)
        self._last_size = len(batch)
        for entry, result in zip(batch, results, strict=True):
            if not entry.done.done():
                entry.done.set_result(result)

    async def _forward_in_thread(self, items: list[In]) -> Sequence[Out]:
        start = perf_counter()
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._thread, self._forward, items)
        finally:
            self._last_seconds = perf_counter() - start
            self.stats.forward_seconds += self._last_seconds
        if len(results) != len(items):
            raise RuntimeError(f"the forward pass gave {len(results)} results for {len(items)}")
        return results


def _fail(entry: _Entry[In, Out], error: BaseException) -> None:
    if not entry.done.done():
        entry.done.set_exception(error)
