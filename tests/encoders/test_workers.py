"""The threads that prepare items: order, room, deadlines, failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import pytest
import virtual_clock

from encoders.errors import EncoderBusy
from encoders.workers import Workers, WorkersClosed


class Threads(Executor):
    """Any number of calls at once; each takes what it returns in virtual seconds."""

    def __init__(self) -> None:
        self.starts: list[tuple[float, float]] = []

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        loop = asyncio.get_running_loop()
        seconds = call()
        self.starts.append((loop.time(), seconds))
        future: Future[Any] = Future()
        loop.call_later(seconds, future.set_result, seconds)
        return future


def takes(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def make(threads: int, **options: Any) -> Workers:
    return Workers(threads, (10, 100), name="test", **options)


async def test_calls_run_in_threads_and_return_or_raise() -> None:
    workers = make(2)
    here = threading.get_ident()
    assert await workers.run(threading.get_ident, 1) != here
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 // 0, 1)
    assert await workers.run(partial(int, "7"), 1) == 7
    assert (workers.busy, workers.waiting) == (0, 0)
    assert workers.seconds > 0
    workers.check()
    workers.close()


def test_a_small_call_overtakes_large_ones_that_wait() -> None:
    threads = Threads()

    async def program() -> list[float]:
        workers = make(1, executor=threads)
        large = [asyncio.create_task(workers.run(takes(2.0), 1000)) for _ in range(5)]
        await asyncio.sleep(0.5)
        small = asyncio.create_task(workers.run(takes(0.1), 5))
        await asyncio.gather(small, *large)
        workers.check()
        return [seconds for _, seconds in threads.starts]

    assert virtual_clock.run(program()) == [2.0, 0.1, 2.0, 2.0, 2.0, 2.0]


def test_as_many_at_once_as_there_are_threads_and_only_with_room() -> None:
    threads = Threads()

    async def program() -> None:
        room = True
        workers = make(2, executor=threads, has_room=lambda: room)
        calls = [asyncio.create_task(workers.run(takes(1.0), 1)) for _ in range(5)]
        await asyncio.sleep(0.5)
        assert (workers.busy, workers.waiting) == (2, 3)
        room = False
        await asyncio.sleep(2.0)
        assert (workers.busy, workers.waiting) == (0, 3)
        workers.check()
        room = True
        with pytest.raises(AssertionError, match="beside idle threads"):
            workers.check()
        workers.poke()
        await asyncio.gather(*calls)

    virtual_clock.run(program())
    assert [start for start, _ in threads.starts] == pytest.approx([0, 0, 2.5, 2.5, 3.5])


def test_deadlines_and_cancellation_free_the_place() -> None:
    threads = Threads()

    async def program() -> None:
        workers = make(1, executor=threads)
        running = asyncio.create_task(workers.run(takes(4.0), 1))
        late = asyncio.create_task(workers.run(takes(1.0), 1, deadline=3.0))
        gone = asyncio.create_task(workers.run(takes(1.0), 1))
        last = asyncio.create_task(workers.run(takes(0.5), 1))
        await asyncio.sleep(1.0)
        gone.cancel()
        with pytest.raises(EncoderBusy, match=r"waited 3 s"):
            await late
        assert await running == 4.0
        assert await last == 0.5
        assert workers.waiting == 0

    virtual_clock.run(program())
    assert [seconds for _, seconds in threads.starts] == [4.0, 0.5]


def test_the_result_of_a_call_whose_caller_left_is_dropped() -> None:
    threads = Threads()

    async def program() -> None:
        workers = make(1, executor=threads)
        gone = asyncio.create_task(workers.run(takes(2.0), 1))
        await asyncio.sleep(1.0)
        gone.cancel()
        assert await workers.run(takes(1.0), 1) == 1.0
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        assert gone.cancelled()

    virtual_clock.run(program())


async def test_close_fails_what_waits() -> None:
    workers = make(1)
    go = threading.Event()
    first = asyncio.create_task(workers.run(go.wait, 1))
    second = asyncio.create_task(workers.run(go.wait, 1))
    await asyncio.sleep(0)
    workers.close()
    with pytest.raises(WorkersClosed):
        await second
    go.set()
    assert await first is True
    with pytest.raises(WorkersClosed):
        await workers.run(go.wait, 1)
