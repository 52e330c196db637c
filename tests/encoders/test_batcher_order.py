"""Deadlines and the order of large and small items in the batcher, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import virtual_clock
from batching import Int, double, gather

from encoders.batcher import BatchLimits
from encoders.errors import EncoderBusy


def test_an_item_is_dropped_at_its_deadline() -> None:
    device = virtual_clock.Device(lambda items: 1.0)

    async def program() -> tuple[float, dict[str, Any]]:
        batcher = Int(double, BatchLimits(1), thread=device)
        loop = asyncio.get_running_loop()
        calls = [asyncio.create_task(batcher.submit(n, 1, deadline=2.5)) for n in range(5)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        failed_at = loop.time()
        batcher.check()
        results = await gather(calls)
        # The third was taken at 2.0 and may end after its deadline; the rest never ran.
        assert results[:3] == [0, 2, 4]
        for result in results[3:]:
            assert isinstance(result, EncoderBusy)
            assert str(result) == "the item was not encoded: it waited 2.5 s"
        report = batcher.report()
        await batcher.close()
        return failed_at, report

    failed_at, report = virtual_clock.run(program())
    assert failed_at == pytest.approx(2.5)
    assert [items for _, items in device.passes] == [[0], [1], [2]]
    assert (report["expired"], report["cancelled"], report["queued_work"]) == (2, 0, 0)
    assert report["longest_wait_seconds"] == pytest.approx(2.0)


def test_a_large_queue_does_not_hold_a_small_item_up() -> None:
    # A unit of work takes a millisecond; 20 large items and one small one.
    device = virtual_clock.Device(lambda items: sum(items) / 1000)

    async def program() -> tuple[float, float]:
        batcher = Int(double, BatchLimits(1024, 16), thread=device)
        large = [asyncio.create_task(batcher.submit(1000, 1000)) for _ in range(20)]
        await asyncio.sleep(1.5)
        start = asyncio.get_running_loop().time()
        await batcher.submit(4, 4)
        small = asyncio.get_running_loop().time() - start
        await asyncio.gather(*large)
        await batcher.close()
        return small, asyncio.get_running_loop().time()

    small, end = virtual_clock.run(program())
    assert small == pytest.approx(0.5 + 0.004)  # the rest of the pass that ran, and its own
    assert end == pytest.approx(20 + 0.004)


def test_a_stream_of_small_items_does_not_hold_a_large_one_up() -> None:
    device = virtual_clock.Device(lambda items: sum(items) / 1000)

    async def program() -> float:
        batcher = Int(double, BatchLimits(1024, 16), thread=device)
        done = asyncio.Event()

        async def client() -> None:
            while not done.is_set():
                await batcher.submit(10, 10)

        clients = [asyncio.create_task(client()) for _ in range(32)]
        await asyncio.sleep(1.0)
        start = asyncio.get_running_loop().time()
        await batcher.submit(1000, 1000)
        waited = asyncio.get_running_loop().time() - start
        done.set()
        await asyncio.gather(*clients)
        await batcher.close()
        return waited

    # The pass that ran (160 units), and at most one more before its own.
    assert virtual_clock.run(program()) <= 1.0 + 2 * 0.16 + 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_agree_with_one_item_at_a_time(seed: int) -> None:
    """The naive twin serves the same arrivals one by one, without batches or classes: every item
    has the same result and is encoded once, and the batcher is done no later."""
    rng = random.Random(seed)
    arrivals = [
        (rng.uniform(0, 5), rng.choice([rng.randint(1, 10), rng.randint(1, 900)]))
        for _ in range(rng.randint(1, 60))
    ]
    # A pass costs 20 ms besides its work: batches pay.
    device = virtual_clock.Device(lambda items: 0.02 + sum(items) / 1000)
    starts: dict[int, float] = {}

    async def program() -> float:
        batcher = Int(double, BatchLimits(1000, 8, max_wait=0), thread=device)

        async def call(index: int, at: float, work: int) -> None:
            await asyncio.sleep(at)
            assert await batcher.submit(work, work) == 2 * work
            starts[index] = asyncio.get_running_loop().time()

        await asyncio.gather(*(call(i, at, work) for i, (at, work) in enumerate(arrivals)))
        batcher.check()
        await batcher.close()
        return max(start + device.seconds(items) for start, items in device.passes)

    end = virtual_clock.run(program())
    twin = 0.0
    for at, work in sorted(arrivals):
        twin = max(twin, at) + 0.02 + work / 1000
    assert len(starts) == len(arrivals)
    assert end <= twin + 1e-9
    assert sorted(w for _, items in device.passes for w in items) == sorted(
        work for _, work in arrivals
    )
