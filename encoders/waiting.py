"""Calls that wait for their turn: fair order, deadlines, cancellation. One event loop each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from encoders.errors import EncoderBusy
from encoders.size_classes import SizeClasses

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(eq=False)
class Waiter(Generic[In, Out]):
    """One call: its item, the work in it, its result, and when it came (event loop's seconds)."""

    item: In
    work: int
    done: asyncio.Future[Out]
    since: float
    timer: asyncio.TimerHandle | None = None

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def answer(self, result: Out) -> None:
        if not self.done.done():
            self.done.set_result(result)


@dataclass
class WaitStats:
    """Calls that left the queue without being served, and the waits of those that were."""

    cancelled: int = 0
    expired: int = 0
    served: int = 0
    wait_seconds: float = 0.0
    longest_wait: float = 0.0


class WaitingLine(Generic[In, Out]):
    """Waiters in the order of `SizeClasses`.

    A cancelled call takes its item out of the line; if it was taken already, its result is dropped.
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        self.order: SizeClasses[Waiter[In, Out]] = SizeClasses(bounds)
        self.stats = WaitStats()

    def __len__(self) -> int:
        return len(self.order)

    def join(self, item: In, work: int, deadline: float | None) -> Waiter[In, Out]:
        """A waiter at the end of its class. At `deadline` (event loop's seconds) it leaves with
        `EncoderBusy`, unless it was taken before.
        """
        loop = asyncio.get_running_loop()
        waiter: Waiter[In, Out] = Waiter(item, work, loop.create_future(), loop.time())
        self.order.push(waiter, work)
        if deadline is not None:
            waiter.timer = loop.call_at(deadline, self._expire, waiter)
        return waiter

    async def result(self, waiter: Waiter[In, Out]) -> Out:
        """The waiter's result, when it is there."""
        try:
            return await waiter.done
        except asyncio.CancelledError:
            self.stats.cancelled += 1
            self._leave(waiter)
            raise

    def take(self, max_work: int, max_items: int) -> list[Waiter[In, Out]]:
        """The next waiters to serve, see `SizeClasses.take`."""
        taken = self.order.take(max_work, max_items)
        now = asyncio.get_running_loop().time()
        for waiter in taken:
            _stop(waiter)
            self.stats.served += 1
            self.stats.wait_seconds += now - waiter.since
            self.stats.longest_wait = max(self.stats.longest_wait, now - waiter.since)
        return [waiter for waiter in taken if not waiter.done.done()]

    def fail_all(self, error: Exception) -> None:
        """End every wait with `error`."""
        for waiter in list(self.order):
            self._leave(waiter)
            waiter.fail(error)

    def _expire(self, waiter: Waiter[In, Out]) -> None:
        if self._leave(waiter):
            self.stats.expired += 1
            waited = asyncio.get_running_loop().time() - waiter.since
            waiter.fail(EncoderBusy(f"the item was not encoded: it waited {waited:.3g} s"))

    def _leave(self, waiter: Waiter[In, Out]) -> bool:
        _stop(waiter)
        return self.order.discard(waiter, waiter.work)

    def check(self) -> None:
        """Raises `AssertionError` when the line is not consistent or holds a call that ended."""
        self.order.check()
        for waiter in self.order:
            # A cancelled call leaves in its own task, at the loop's next step at the latest.
            if waiter.done.done() and not waiter.done.cancelled():
                raise AssertionError("a call that ended still waits")


def _stop(waiter: Waiter[In, Out]) -> None:
    if waiter.timer is not None:
        waiter.timer.cancel()
        waiter.timer = None
