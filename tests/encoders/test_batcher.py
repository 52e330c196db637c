"""The batcher, with fake forward passes."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import virtual_clock
from batching import Int, double, gather

from encoders.batcher import BatcherClosed, BatchLimits, PassReport
from encoders.size_classes import SizeClasses, class_bounds


class Slow:
    """Doubles its items in `seconds` per pass, whatever their number, and keeps the batches."""

    def __init__(self, seconds: float = 0.005) -> None:
        self.seconds = seconds
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        time.sleep(self.seconds)
        self.batches.append(list(items))
        return double(items)


async def test_concurrent_requests_share_batches() -> None:
    # case 58: mean batch above 1 under 16 concurrent clients, and visible in the statistics
    slow = Slow()
    batcher = Int(slow, BatchLimits(100))

    async def client(number: int) -> None:
        for step in range(5):
            assert await batcher.submit(number + step, 1) == 2 * (number + step)

    await asyncio.gather(*(client(number) for number in range(16)))
    report = batcher.report()
    assert report["items"] == 80
    assert report["mean_batch_size"] > 6
    assert sum(size * times for size, times in report["batch_sizes"].items()) == 80
    assert report["queued_items"] == report["queued_work"] == 0
    assert sorted(report["batch_sizes"]) == sorted({len(batch) for batch in slow.batches})
    await batcher.close()


def test_an_idle_batcher_does_not_wait() -> None:
    device = virtual_clock.Device(lambda items: 0.25)

    async def program() -> float:
        batcher = Int(double, BatchLimits(100, max_wait=1.0), thread=device)
        for number in range(20):
            assert await batcher.submit(number, 1) == 2 * number
        await batcher.close()
        return asyncio.get_running_loop().time()

    assert virtual_clock.run(program()) == pytest.approx(20 * 0.25)


def test_the_wait_under_load_is_bounded() -> None:
    device = virtual_clock.Device(lambda items: 0.5)

    async def program() -> None:
        batcher = Int(double, BatchLimits(100, max_wait=1.0), thread=device)
        first = [asyncio.create_task(batcher.submit(number, 1)) for number in range(4)]
        await asyncio.sleep(0.1)
        await batcher.submit(9, 1)
        await asyncio.gather(*first)
        await batcher.close()

    virtual_clock.run(program())
    # Held back for a tenth of the last pass, not for `max_wait`.
    assert [start for start, _ in device.passes] == pytest.approx([0, 0.5 + 0.05])


async def test_callers_of_one_pass_meet_again_in_the_next() -> None:
    slow = Slow(0.03)
    batcher = Int(slow, BatchLimits(100, max_wait=0.1))

    async def client(delay: float) -> None:
        for _ in range(4):
            await batcher.submit(1, 1)
            await asyncio.sleep(delay)

    await asyncio.gather(client(0), client(0.0005), client(0.001))
    assert len(slow.batches) <= 6  # 12 items; without the wait two groups alternate
    await batcher.close()


@pytest.mark.parametrize(("max_work", "max_items"), [(10, 100), (1000, 3)])
async def test_limits_hold(max_work: int, max_items: int) -> None:
    slow = Slow(0.001)
    batcher = Int(slow, BatchLimits(max_work, max_items))
    works = [random.Random(number).randint(1, 14) for number in range(60)]
    results = await asyncio.gather(*(batcher.submit(work, work) for work in works))
    assert results == [2 * work for work in works]
    for batch in slow.batches:
        assert len(batch) <= max_items
        assert sum(batch) <= max_work or len(batch) == 1
    # First come, first served within a class of sizes, and a pass has items of one class only.
    classes = SizeClasses[int](class_bounds(max_work)).class_of
    done = [item for batch in slow.batches for item in batch]
    for kind in set(map(classes, works)):
        assert [w for w in done if classes(w) == kind] == [w for w in works if classes(w) == kind]
    assert all(len(set(map(classes, batch))) == 1 for batch in slow.batches)
    await batcher.close()


def fail_on(*guilty: int) -> Callable[[Sequence[int]], list[int]]:
    def forward(items: Sequence[int]) -> list[int]:
        for item in items:
            if item in guilty:
                raise ValueError(f"item {item}")
        return double(items)

    return forward


async def test_one_bad_item_harms_no_other() -> None:
    # cases 56 and 64: the guilty caller gets the cause, quickly, the others their results
    batcher = Int(fail_on(3, 7), BatchLimits(100))
    results = await gather([batcher.submit(number, 1) for number in range(10)])
    for number, result in enumerate(results):
        if number in (3, 7):
            assert isinstance(result, ValueError)
            assert str(result) == f"item {number}"
        else:
            assert result == 2 * number
    assert batcher.stats.failed == 2
    assert await batcher.submit(5, 1) == 10
    await batcher.close()


async def test_a_wrong_number_of_results_is_an_error() -> None:
    # case 35: one row set fewer must not shift the others
    def forward(items: Sequence[int]) -> list[int]:
        return double(items)[1:] if len(items) > 1 or items[0] == 0 else double(items)

    batcher = Int(forward, BatchLimits(100))
    results = await gather([batcher.submit(number, 1) for number in range(4)])
    assert isinstance(results[0], RuntimeError)
    assert results[1:] == [2, 4, 6]
    await batcher.close()


async def test_the_thread_cannot_take_the_loop_down() -> None:
    def forward(items: Sequence[int]) -> list[int]:
        if 1 in items:
            raise SystemExit("out")
        return double(items)

    batcher = Int(forward, BatchLimits(100))
    results = await gather([batcher.submit(number, 1) for number in range(3)])
    assert isinstance(results[1], RuntimeError)
    assert [results[0], results[2]] == [0, 4]
    await batcher.close()


async def test_cancelled_items_leave_the_queue() -> None:
    slow = Slow(0.03)
    batcher = Int(slow, BatchLimits(1))
    tasks = [asyncio.create_task(batcher.submit(number, 1)) for number in range(6)]
    await asyncio.sleep(0.01)
    for task in tasks[2:5]:
        task.cancel()
    await asyncio.sleep(0)
    assert batcher.queued_items == batcher.queued_work == 2
    results = await gather(tasks)
    assert [results[0], results[1], results[5]] == [0, 2, 10]
    assert all(isinstance(result, asyncio.CancelledError) for result in results[2:5])
    assert [item for batch in slow.batches for item in batch] == [0, 1, 5]
    await batcher.close()


async def test_cancellation_storm() -> None:
    # case 89: 500 clients give up after 1..20 ms, then 50 patient ones are all served
    slow = Slow(0.004)
    batcher = Int(slow, BatchLimits(20))

    async def impatient(number: int) -> None:
        try:
            async with asyncio.timeout(random.Random(number).uniform(0.001, 0.02)):
                assert await batcher.submit(number, 1) == 2 * number
        except TimeoutError:
            pass

    await asyncio.gather(*(impatient(number) for number in range(500)))
    assert batcher.report()["cancelled"] > 100
    results = await asyncio.gather(*(batcher.submit(number, 1) for number in range(50)))
    assert results == [2 * number for number in range(50)]
    assert batcher.queued_items == batcher.queued_work == 0
    done = [item for batch in slow.batches for item in batch]
    assert len(done) < 500  # most of what nobody waits for is never run
    await batcher.close()


async def test_close_fails_waiters_and_lets_the_pass_end() -> None:
    batcher = Int(Slow(0.05), BatchLimits(1), name="closing")
    tasks = [asyncio.create_task(batcher.submit(number, 1)) for number in range(3)]
    await asyncio.sleep(0.01)
    await batcher.close()
    results = await gather(tasks)
    assert results[0] == 0
    assert all(isinstance(result, BatcherClosed) for result in results[1:])
    with pytest.raises(BatcherClosed):
        await batcher.submit(1, 1)
    for thread in threading.enumerate():
        if thread.name.startswith("closing"):
            thread.join(timeout=2)
            assert not thread.is_alive()


async def test_the_event_loop_stays_free() -> None:
    # case 66: no polling and no blocking while passes run
    batcher = Int(Slow(0.05), BatchLimits(100))
    lags: list[float] = []
    running = True

    async def probe() -> None:
        while running:
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(time.perf_counter() - start)

    watcher = asyncio.create_task(probe())
    await asyncio.gather(*(batcher.submit(number, 1) for number in range(200)))
    running = False
    await watcher
    assert len(lags) > 20
    assert sorted(lags)[int(len(lags) * 0.95)] < 0.05
    await batcher.close()


def test_it_survives_one_event_loop_after_another() -> None:
    batcher = Int(Slow(0.01), BatchLimits(4))

    async def abandon() -> None:
        tasks = [asyncio.create_task(batcher.submit(number, 1)) for number in range(10)]
        await asyncio.sleep(0.005)
        del tasks

    asyncio.run(abandon())
    assert batcher.queued_items == batcher.queued_work == 0

    async def use() -> int:
        return await batcher.submit(4, 1)

    assert asyncio.run(use()) == 8


def test_limits_are_checked() -> None:
    for limits in (
        {"max_work": 0},
        {"max_work": 1, "max_items": 0},
        {"max_work": 1, "max_wait": 2},
    ):
        with pytest.raises(ValueError, match=list(limits)[-1]):
            BatchLimits(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
async def test_random_calls_agree_with_one_pass_per_item(seed: int) -> None:
    """The naive twin runs every item alone; whatever is batched, failed or cancelled around it, a
    call that is not cancelled has the twin's outcome."""
    rng = random.Random(seed)
    forward = fail_on(*rng.sample(range(300), 20))
    batcher = Int(lambda items: (time.sleep(0.0005), forward(items))[1], BatchLimits(30, 8))

    def twin(item: int) -> Any:
        try:
            return forward([item])[0]
        except ValueError as error:
            return str(error)

    async def call(item: int) -> Any:
        await asyncio.sleep(rng.uniform(0, 0.05))
        try:
            return await batcher.submit(item, rng.randint(1, 40))
        except ValueError as error:
            return str(error)

    tasks = [asyncio.create_task(call(item)) for item in range(300)]
    await asyncio.sleep(0.02)
    for task in rng.sample(tasks, 60):
        task.cancel()
    results = await gather(tasks)
    kept = [
        (i, result) for i, result in enumerate(results) if not isinstance(result, BaseException)
    ]
    assert len(kept) >= 240
    assert all(result == twin(item) for item, result in kept)
    assert batcher.queued_items == batcher.queued_work == 0
    await batcher.close()


def test_passes_are_reported() -> None:
    reports: list[PassReport] = []
    device = virtual_clock.Device(lambda items: 1.0)

    async def program() -> None:
        limits = BatchLimits(100, 2, max_wait=0)
        batcher = Int(double, limits, thread=device, observer=reports.append)
        await asyncio.gather(*(batcher.submit(number, 7) for number in range(5)))
        await batcher.close()

    virtual_clock.run(program())
    assert [report.items for report in reports] == [2, 2, 1]
    assert [report.work for report in reports] == [14, 14, 7]
    assert [report.seconds for report in reports] == pytest.approx([1, 1, 1])
    assert [max(report.waits) for report in reports] == pytest.approx([0, 1, 2])
    assert [(report.queued_items, report.queued_work) for report in reports] == [
        (3, 21),
        (1, 7),
        (0, 0),
    ]


def test_room_is_reported_when_waiting_items_leave() -> None:
    rooms: list[int] = []
    device = virtual_clock.Device(lambda items: 1.0)

    async def program() -> None:
        batcher = Int(
            double, BatchLimits(1), thread=device, on_room=lambda: rooms.append(batcher.queued_work)
        )
        tasks = [asyncio.create_task(batcher.submit(number, 1)) for number in range(3)]
        await asyncio.sleep(0.5)
        for task in tasks[1:]:
            task.cancel()
        await gather(tasks)
        await batcher.close()

    virtual_clock.run(program())
    assert rooms == [2, 0]  # the first pass, and the end: the cancelled ones got none
