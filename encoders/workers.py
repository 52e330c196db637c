"""Threads that prepare items for the device, ahead of the forward passes but not too far.

While a pass runs, the threads prepare the next one's items. They stop while enough prepared work
waits, so that prepared tensors of a long queue do not fill the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from encoders.waiting import Waiter, WaitingLine

T = TypeVar("T")

Call = Callable[[], Any]


class WorkersClosed(RuntimeError):
    """The workers were closed before they could take the call."""


class Workers:
    """`threads` threads that run calls in the order of `SizeClasses`, by their cost.

    `bounds`: costs that divide the classes. `has_room`: whether another call may begin now; after
    it has become true again, someone must call `poke`. All methods belong to one event loop.
    """

    def __init__(
        self,
        threads: int,
        bounds: Sequence[int],
        *,
        name: str,
        has_room: Callable[[], bool] = lambda: True,
        executor: Executor | None = None,
    ) -> None:
        self.threads = threads
        self._executor = executor or ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._line: WaitingLine[Call, Any] = WaitingLine(bounds)
        self._has_room = has_room
        self._busy = 0
        self._seconds = 0.0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Calls that no thread has taken yet."""
        return len(self._line)

    @property
    def busy(self) -> int:
        """Calls that run."""
        return self._busy

    @property
    def seconds(self) -> float:
        """Time that calls took in all threads together, without waiting."""
        return self._seconds

    async def run(self, call: Callable[[], T], cost: int, deadline: float | None = None) -> T:
        """The result of `call()` in a thread.

        `deadline`: until when it may wait for a thread, in the event loop's seconds. Raises what
        the call raises, `EncoderBusy` at the deadline, `WorkersClosed`.
        """
        if self._closed:
            raise WorkersClosed("the workers are closed")
        waiter = self._line.join(call, cost, deadline)
        self.poke()
        result: T = await self._line.result(waiter)
        return result

    def poke(self) -> None:
        """Begin waiting calls as long as there are idle threads and room."""
        while self._busy < self.threads and len(self._line) and self._has_room():
            for waiter in self._line.take(0, 1):
                self._begin(waiter)

    def _begin(self, waiter: Waiter[Call, Any]) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        self._busy += 1
        running = loop.run_in_executor(self._executor, waiter.item)

        def end(done: asyncio.Future[Any]) -> None:
            self._busy -= 1
            self._seconds += loop.time() - start
            if done.cancelled():
                waiter.fail(WorkersClosed("the workers closed before the call began"))
                return
            error = done.exception()
            if error is None:
                waiter.answer(done.result())
            else:
                waiter.fail(error)
            self.poke()

        running.add_done_callback(end)

    def close(self) -> None:
        """Fail what waits; calls that run end by themselves."""
        self._closed = True
        self._line.fail_all(WorkersClosed("the workers closed while the call waited"))
        self._executor.shutdown(wait=False, cancel_futures=True)

    def check(self) -> None:
        """Raises `AssertionError` when calls wait although nothing keeps them from running."""
        self._line.check()
        if not 0 <= self._busy <= self.threads:
            raise AssertionError(f"{self._busy} calls run in {self.threads} threads")
        if len(self._line) and self._busy < self.threads and self._has_room():
            raise AssertionError(f"{len(self._line)} calls wait beside idle threads")
