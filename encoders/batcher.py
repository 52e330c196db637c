"""Batches across requests: items of different users share one forward pass.

One batcher serves one modality in one replica. Everything is driven by events: a submission or the
end of a forward pass starts the next batch; nothing polls and no task outlives its work, so there
is no loop that a cancellation could kill.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from encoders.size_classes import class_bounds
from encoders.waiting import Waiter, WaitingLine

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


@dataclass(frozen=True)
class PassReport:
    """One forward pass: its items and work, its seconds, the seconds that each item had waited,
    and what waits behind it."""

    items: int
    work: int
    seconds: float
    waits: tuple[float, ...]
    queued_items: int
    queued_work: int


BatchObserver = Callable[[PassReport], None]


class Batcher(Generic[In, Out]):
    """Collects items and runs `forward(items) -> results` (same length and order) in a thread.

    While a pass runs, the next batch collects. Batches are cut in the order of `SizeClasses`, so
    that large and small items hold each other up within its bound only. If a pass fails, its items
    are run again one by one: only the guilty item's caller sees the exception. A caller that is
    cancelled takes its item out of the queue; if it is already in a pass, the result is dropped.
    All methods belong to one event loop. `thread`: what runs the passes, one at a time; a thread of
    the batcher's own unless given. `observer`: told of every pass that succeeded. `on_room`: called
    when waiting work has become less.
    """

    def __init__(
        self,
        forward: Callable[[Sequence[In]], Sequence[Out]],
        limits: BatchLimits,
        *,
        name: str = "batcher",
        thread: Executor | None = None,
        observer: BatchObserver | None = None,
        on_room: Callable[[], None] | None = None,
    ) -> None:
        self.limits = limits
        self.stats = BatchStats()
        self._forward = forward
        self._observer = observer
        self._on_room = on_room
        self._line: WaitingLine[In, Out] = WaitingLine(class_bounds(limits.max_work))
        self._runner: asyncio.Task[None] | None = None
        self._grown = asyncio.Event()
        self._closed = False
        self._running_work = 0
        self._last_class: int | None = None
        self._last_size = 0
        self._last_seconds = 0.0
        # One thread: passes of one modality never compete with each other for the device.
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix=name)

    @property
    def queued_items(self) -> int:
        return len(self._line)

    @property
    def queued_work(self) -> int:
        """Work of the items that wait, without those in a pass."""
        return self._line.order.work

    @property
    def running_work(self) -> int:
        """Work of the items in the pass that runs."""
        return self._running_work

    def warm_up(self, items: Sequence[In]) -> None:
        """Run one pass now, in the thread that will run all others; not counted. Blocks."""
        self._thread.submit(self._forward, items).result()

    def report(self) -> dict[str, Any]:
        """Counters, the histogram of batch sizes and the queue, as plain data."""
        stats, waits = self.stats, self._line.stats
        return {
            "items": stats.items,
            "batches": stats.batches,
            "mean_batch_size": stats.mean_size,
            "batch_sizes": dict(sorted(stats.sizes.items())),
            "work": stats.work,
            "failed": stats.failed,
            "cancelled": waits.cancelled,
            "expired": waits.expired,
            "forward_seconds": stats.forward_seconds,
            "mean_wait_seconds": waits.wait_seconds / waits.served if waits.served else 0.0,
            "longest_wait_seconds": waits.longest_wait,
            "queued_items": self.queued_items,
            "queued_work": self.queued_work,
            "running_work": self.running_work,
        }

    async def submit(self, item: In, work: int, deadline: float | None = None) -> Out:
        """The result of `item`, whose share of a batch is `work`.

        `deadline`: until when the item may wait for its pass, in the event loop's seconds. Raises
        what `forward` raises for this item alone, `EncoderBusy` at the deadline, `BatcherClosed`.
        """
        if self._closed:
            raise BatcherClosed("the batcher is closed")
        waiter = self._line.join(item, work, deadline)
        self._grown.set()
        if self._runner is None:
            # An empty context: the runner serves everybody, not the request that woke it.
            self._runner = asyncio.create_task(self._run(), context=Context())
        return await self._line.result(waiter)

    async def close(self) -> None:
        """Fail everything that waits, let the pass in progress end, free the thread."""
        self._closed = True
        self._line.fail_all(BatcherClosed("the batcher closed while the item waited"))
        self._grown.set()
        if self._runner is not None:
            await asyncio.wait([self._runner])
        self._thread.shutdown(wait=False)

    def check(self) -> None:
        """Raises `AssertionError` when the queue is not consistent or waits without a runner."""
        self._line.check()
        if len(self._line) and self._runner is None:
            raise AssertionError(f"{len(self._line)} items wait and nobody serves them")

    async def _run(self) -> None:
        """Run batches until the queue is empty."""
        loaded = False
        try:
            while len(self._line):
                if loaded:
                    await self._fill_up()
                index = self._line.order.next_class()
                batch = self._line.take(self.limits.max_work, self.limits.max_items)
                if self._on_room is not None:
                    self._on_room()
                if batch:
                    self._last_class = index
                    await self._pass(batch)
                loaded = True
                # Callers wake up before the next batch is cut: their next items may join it.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            # Only the end of the event loop cancels the runner: nobody would run the rest.
            self._line.fail_all(BatcherClosed("the event loop ended while the item waited"))
            raise
        finally:
            self._runner = None
            # Also when the last items left without a pass.
            if self._on_room is not None:
                self._on_room()

    async def _fill_up(self) -> None:
        """Hold the next batch back for the callers that the last pass has just answered.

        Only for a batch of the same size class that is smaller than the last one, and for no longer
        than a tenth of the last pass (at most `max_wait`): the price in latency stays below what
        the fuller batch saves.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + min(self.limits.max_wait, self._last_seconds / 10)
        while self._worth_waiting() and not self._closed:
            rest = until - loop.time()
            if rest <= 0:
                return
            self._grown.clear()
            try:
                await asyncio.wait_for(self._grown.wait(), rest)
            except TimeoutError:
                return

    def _worth_waiting(self) -> bool:
        index = self._line.order.next_class()
        if index is None or index != self._last_class:
            return False
        items, work = self._line.order.waiting(index)
        most = min(self._last_size, self.limits.max_items)
        return items < most and work < self.limits.max_work

    async def _pass(self, batch: Sequence[Waiter[In, Out]]) -> None:
        """One forward pass; after a failure one pass per item."""
        work = sum(waiter.work for waiter in batch)
        start = asyncio.get_running_loop().time()
        try:
            results = await self._forward_in_thread([waiter.item for waiter in batch], work)
        except asyncio.CancelledError:
            for waiter in batch:
                waiter.fail(BatcherClosed("the event loop ended while the item was encoded"))
            raise
        except BaseException as error:
            if len(batch) == 1:
                self.stats.failed += 1
                # A thread's SystemExit must not take the loop with it.
                ordinary = isinstance(error, Exception)
                batch[0].fail(error if ordinary else RuntimeError(f"pass ended by {error!r}"))
                return
            for waiter in batch:
                if not waiter.done.done():
                    await self._pass([waiter])
            return
        stats = self.stats
        stats.items += len(batch)
        stats.batches += 1
        stats.sizes[len(batch)] += 1
        stats.work += work
        self._last_size = len(batch)
        for waiter, result in zip(batch, results, strict=True):
            waiter.answer(result)
        if self._observer is not None:
            waits = tuple(start - waiter.since for waiter in batch)
            self._observer(
                PassReport(
                    len(batch), work, self._last_seconds, waits, self.queued_items, self.queued_work
                )
            )

    async def _forward_in_thread(self, items: list[In], work: int) -> Sequence[Out]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        self._running_work = work
        try:
            results = await loop.run_in_executor(self._thread, self._forward, items)
        finally:
            self._running_work = 0
            self._last_seconds = loop.time() - start
            self.stats.forward_seconds += self._last_seconds
        if len(results) != len(items):
            raise RuntimeError(f"the forward pass gave {len(results)} results for {len(items)}")
        return results
