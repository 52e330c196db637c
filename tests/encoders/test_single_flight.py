"""Single flight: by example, and on random schedules against what each caller must see."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from encoders.errors import MediaError
from encoders.single_flight import FlightCancelled, SingleFlight


class Work:
    """A computation that waits for `gate` and counts its runs."""

    def __init__(self, failures: int = 0, error: Exception | None = None) -> None:
        self.gate = asyncio.Event()
        self.runs = 0
        self.running = 0
        self._failures = failures
        self._error = error or RuntimeError("fault")

    async def __call__(self) -> int:
        self.runs += 1
        run = self.runs
        self.running += 1
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        if run <= self._failures:
            raise self._error
        return run


def flights() -> SingleFlight[int]:
    return SingleFlight(MediaError)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_concurrent_calls_compute_once() -> None:
    # case 68
    single, work = flights(), Work()
    calls = [asyncio.create_task(single.run("a", work)) for _ in range(10)]
    await settle()
    single.check()
    assert len(single) == 1
    work.gate.set()
    assert await asyncio.gather(*calls) == [1] * 10
    assert work.runs == 1
    assert len(single) == 0
    assert single.report() == {
        "calls": 10,
        "flights": 1,
        "joined": 9,
        "takeovers": 0,
        "in_flight": 0,
    }


async def test_keys_do_not_wait_for_each_other() -> None:
    single, slow, fast = flights(), Work(), Work()
    waiting = asyncio.create_task(single.run("slow", slow))
    fast.gate.set()
    assert await single.run("fast", fast) == 1
    assert not waiting.done()
    slow.gate.set()
    assert await waiting == 1


async def test_a_cancelled_leader_leaves_the_followers_their_result() -> None:
    # case 68
    single, work = flights(), Work()
    calls = [asyncio.create_task(single.run("a", work)) for _ in range(3)]
    await settle()
    calls[0].cancel()
    await settle()
    assert calls[0].cancelled()
    work.gate.set()
    assert await asyncio.gather(*calls[1:]) == [1, 1]
    assert work.runs == 1


async def test_the_last_caller_takes_the_work_with_it() -> None:
    single, work = flights(), Work()
    calls = [asyncio.create_task(single.run("a", work)) for _ in range(3)]
    await settle()
    for call in calls:
        call.cancel()
    await settle()
    assert work.running == 0
    assert len(single) == 0
    work.gate.set()
    assert await single.run("a", work) == 2


async def test_a_call_right_after_the_last_cancellation_starts_anew() -> None:
    single, work = flights(), Work()
    first = asyncio.create_task(single.run("a", work))
    await settle()
    first.cancel()
    second = asyncio.create_task(single.run("a", work))
    work.gate.set()
    assert await second in (1, 2)
    single.check()


async def test_an_error_of_the_media_is_shared() -> None:
    single, work = flights(), Work(99, MediaError("not an image"))
    calls = [asyncio.create_task(single.run("a", work)) for _ in range(4)]
    await settle()
    work.gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(result) for result in results] == ["not an image"] * 4
    assert all(isinstance(result, MediaError) for result in results)
    assert len({id(result) for result in results}) == 4
    assert work.runs == 1


async def test_after_a_fault_a_follower_takes_over() -> None:
    single, work = flights(), Work(failures=2)
    calls = [asyncio.create_task(single.run("a", work)) for _ in range(5)]
    await settle()
    work.gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(result) for result in results] == ["fault", "fault", "3", "3", "3"]
    assert work.runs == 3
    assert single.stats.takeovers == 2


async def test_a_cancellation_from_within_is_an_error_for_one_and_a_retry_for_the_rest() -> None:
    runs = 0

    async def compute() -> int:
        nonlocal runs
        runs += 1
        run = runs
        await asyncio.sleep(0)
        if run == 1:
            raise asyncio.CancelledError
        return run

    single = flights()
    calls = [asyncio.create_task(single.run("a", compute)) for _ in range(3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], FlightCancelled)
    assert results[1:] == [2, 2]


async def test_check_finds_a_flight_without_callers() -> None:
    single, work = flights(), Work()
    call = asyncio.create_task(single.run("a", work))
    await settle()
    callers = next(iter(single._flights.values())).callers
    saved = dict(callers)
    callers.clear()
    with pytest.raises(AssertionError, match="nobody waits"):
        single.check()
    callers.update(saved)
    work.gate.set()
    await call


@pytest.mark.parametrize("seed", range(60))
async def test_random_schedules(seed: int) -> None:
    # case 68
    rng = random.Random(seed)
    single: SingleFlight[str] = SingleFlight(MediaError)
    running: dict[str, int] = {}
    bad = {"k2"}

    def computation(key: str, fails: bool, steps: int) -> Callable[[], Awaitable[str]]:
        async def compute() -> str:
            running[key] = running.get(key, 0) + 1
            # A cancelled computation may still be unwinding while the next one starts, never two
            # that somebody waits for.
            assert running[key] <= 2
            try:
                for _ in range(steps):
                    await asyncio.sleep(0)
                if key in bad:
                    raise MediaError(key)
                if fails:
                    raise RuntimeError(key)
                return key
            finally:
                running[key] -= 1

        return compute

    calls: list[tuple[str, bool, asyncio.Task[str]]] = []
    cancelled: set[int] = set()
    for _ in range(80):
        action = rng.random()
        if action < 0.5:
            key, fails = f"k{rng.randrange(3)}", rng.random() < 0.3
            compute = computation(key, fails, rng.randrange(4))
            call = asyncio.create_task(single.run(key, compute))
            calls.append((key, fails, call))
        elif action < 0.7 and calls:
            victim = rng.randrange(len(calls))
            if calls[victim][2].cancel():
                cancelled.add(victim)
        else:
            await asyncio.sleep(0)
        single.check()
    results = await asyncio.gather(*(call for _, _, call in calls), return_exceptions=True)
    faults = 0
    for index, ((key, _, _), result) in enumerate(zip(calls, results, strict=True)):
        if isinstance(result, asyncio.CancelledError):
            assert index in cancelled
        elif key in bad:
            assert isinstance(result, MediaError)
            assert result.reason == key
        elif isinstance(result, RuntimeError):
            faults += 1
            assert str(result) == key
        else:
            assert result == key
    # A fault is reported once, so there are no more of them than computations that can fail.
    assert faults <= sum(fails for _, fails, _ in calls)
    assert len(single) == 0
    await settle()
    assert not any(running.values())
