"""An event loop whose time passes only when nothing is left to do, and a device on that clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    """Never waits: where the loop would, its clock jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("every task waits for something that never comes")
            self.now += max(timeout, 0.0)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """Two runs of the same program are the same in every step and time."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(program: Coroutine[Any, Any, T]) -> T:
    """The program's result on a virtual clock that starts at 0."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(program)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class Device(Executor):
    """Runs one call at a time; it takes `seconds(items)` of virtual time."""

    def __init__(self, seconds: Callable[[Any], float]) -> None:
        self.seconds = seconds
        self.passes: list[tuple[float, Any]] = []

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        loop = asyncio.get_running_loop()
        future: Future[Any] = Future()
        self.passes.append((loop.time(), list(*args)))

        def end() -> None:
            try:
                future.set_result(call(*args))
            except Exception as error:
                future.set_exception(error)

        loop.call_later(self.seconds(*args), end)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass
