"""What the image and the audio encoder replica have in common."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from encoders.backlog import Backlog
from encoders.batcher import Batcher, BatchLimits, BatchObserver
from encoders.embedding import Embedding, RowsArray
from encoders.encode_once import EncodeOnce
from encoders.options import EncoderOptions
from encoders.workers import Workers

Item = TypeVar("Item")

# Prepared work that may wait for the device, in full batches: one to go next and one in reserve.
BATCHES_AHEAD = 2
# Parts of one clip or sound that are prepared or wait for the device at once: the next part is
# prepared while one is encoded, and a long item neither fills the memory nor the queue.
PARTS_IN_FLIGHT = 2


class EncoderReplica(Generic[Item]):
    """Cache and single flight, threads that prepare, a batcher that encodes; and their statistics.

    A plain class: `app/` wraps its subclasses for Ray Serve, tests call them directly.
    """

    def __init__(
        self,
        options: EncoderOptions,
        once: EncodeOnce,
        forward: Callable[[Sequence[Item]], list[RowsArray]],
        *,
        max_work: int,
        threads: int,
        bounds: Sequence[int],
        first_guess: float,
        name: str,
        observer: BatchObserver | None = None,
    ) -> None:
        """`max_work`: patches or mel frames in one forward pass. `bounds`: costs of a preparation
        that divide its size classes. `first_guess`: see `Backlog`.
        """
        self._once = once
        self._queue_timeout = options.queue_timeout_s
        limits = BatchLimits(max_work, options.max_batch_items, options.max_wait_ms / 1000)
        self._workers = Workers(
            threads,
            bounds,
            name=f"{name}-prepare",
            has_room=lambda: self._batcher.queued_work < BATCHES_AHEAD * max_work,
        )
        self._batcher: Batcher[Item, RowsArray] = Batcher(
            forward,
            limits,
            name=f"{name}-forward",
            observer=observer,
            on_room=self._workers.poke,
        )
        self._backlog = Backlog(first_guess)
        self._share_since: tuple[float, float, float] | None = None

    def _deadline(self) -> float:
        """Until when an item that comes now may wait, in the event loop's seconds."""
        return asyncio.get_running_loop().time() + self._queue_timeout

    async def _in_turns(self, parts: Sequence[Callable[[], Awaitable[RowsArray]]]) -> RowsArray:
        """The rows of an item's parts in order, some parts at a time. Raises what a part raises."""
        if len(parts) == 1:
            return await parts[0]()
        free = asyncio.Semaphore(PARTS_IN_FLIGHT)

        async def one(part: Callable[[], Awaitable[RowsArray]]) -> RowsArray:
            async with free:
                return await part()

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(part)) for part in parts]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return RowsArray.concat([task.result() for task in tasks])

    async def find(self, digest: str) -> Embedding | None:
        """The cached embedding of an item, or None: a caller need not decode what is found."""
        return self._once.find(digest)

    async def adopt(self, embedding: Embedding, digest: str) -> None:
        """Keep a clip of another node in this one's store; `digest` is for the router.

        Raises `RowsLost` when that node does not have it any more.
        """
        await self._once.adopt(embedding)

    async def ready(self) -> bool:
        """True: a replica exists only once its model is loaded and warm."""
        return True

    async def stats(self) -> dict[str, Any]:
        """Statistics of batches, cache and single flight; `pending_work` and `queued_work` in
        patches or mel frames. `pids`: this process.
        """
        return {
            "pids": [os.getpid()],
            **self._batcher.report(),
            **self._once.report(),
            "pending_calls": len(self._backlog),
            "pending_work": self._backlog.work,
            "waiting_for_preparation": self._workers.waiting,
            "preparation_seconds": self._workers.seconds,
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `WorkPolicy` decides by; Ray Serve asks for it every few seconds.

        `pending_work`: patches or mel frames accepted and not finished. `mean_work`: of a call.
        `busy`: share of the time since the last call in which the busier of device and preparing
        threads worked.
        """
        now = asyncio.get_running_loop().time()
        forward, prepare = self._batcher.stats.forward_seconds, self._workers.seconds
        busy = 0.0
        if self._share_since is not None and now > self._share_since[0]:
            then, forward_then, prepare_then = self._share_since
            shares = (forward - forward_then, (prepare - prepare_then) / self._workers.threads)
            busy = max(shares) / (now - then)
        self._share_since = now, forward, prepare
        return {
            "pending_work": float(self._backlog.work),
            "mean_work": float(self._backlog.mean_work),
            "busy": busy,
        }

    async def check(self) -> None:
        """Raises `AssertionError` when cache, flights or queues are not consistent."""
        self._once.check()
        self._batcher.check()
        self._workers.check()

    async def close(self) -> None:
        """Fail what waits and free the threads."""
        self._workers.close()
        await self._batcher.close()
        self._once.close()
