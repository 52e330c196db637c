"""The queue in the real engine, and its hook on lists of stand-ins for SGLang's requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from llm.queue.engine import EngineQueue, schedule_policy, uncached_of
from llm.queue.policy import QueuePolicy
from tests.llm.engines import Engines, greedy, random_prompt


@dataclass(eq=False)
class Request:
    name: str
    tokens: int
    arrival_processed_tokens: int = 0
    num_matched_prefix_tokens: int = 0
    priority: int | None = None
    is_retracted: bool = False
    output_ids: list[int] = field(default_factory=list)

    @property
    def origin_input_ids(self) -> list[int]:
        return [0] * self.tokens


def names(waiting: list[Request]) -> list[str]:
    return [request.name for request in waiting]


@pytest.fixture
def queue() -> EngineQueue:
    return EngineQueue(QueuePolicy(1.0, 1000.0), 0.5, lambda request: None)


def test_the_waiting_list_is_sorted_in_place(queue: EngineQueue) -> None:
    waiting = [Request("long", 900), Request("b", 50), Request("a", 50), Request("gold", 1500)]
    waiting[3].priority = 1
    same = waiting
    queue.sort(waiting, 0)
    assert names(same) == ["b", "a", "gold", "long"]
    # A prefix that was cached meanwhile counts.
    waiting[3].num_matched_prefix_tokens = 890
    queue.sort(waiting, 0)
    assert names(waiting) == ["long", "b", "a", "gold"]
    # Who comes later stands behind equal work, and behind longer work that has waited.
    waiting += [Request("c", 50, 10), Request("late", 5, 1000)]
    queue.sort(waiting, 1000)
    assert names(waiting) == ["long", "b", "a", "c", "gold", "late"]


def test_case_104_a_retracted_request_returns_to_its_place(queue: EngineQueue) -> None:
    first, second = Request("first", 100), Request("second", 120)
    waiting = [second, first]
    queue.sort(waiting, 0)
    assert names(waiting) == ["first", "second"]
    waiting.remove(first)
    # It ran, generated, and lost all its KV; SGLang stamps a new arrival.
    first.is_retracted, first.output_ids, first.arrival_processed_tokens = True, [1] * 300, 100
    waiting += [Request("third", 30, 100), first]
    queue.sort(waiting, 100)
    assert names(waiting) == ["first", "second", "third"]
    assert uncached_of(first) == 400


def test_every_request_is_looked_up_in_turns() -> None:
    seen: list[str] = []
    queue = EngineQueue(QueuePolicy(), 0.5, lambda request: seen.append(request.name))
    waiting = [Request(str(i), 10) for i in range(200)]
    queue.sort(waiting, 0)
    assert len(seen) == 200
    seen.clear()
    for _ in range(8):
        queue.sort(waiting, 0)
    assert len(seen) <= 8 * 64
    assert set(seen) == {str(i) for i in range(200)}


def test_shorter_requests_share_the_pass_of_a_long_one(queue: EngineQueue) -> None:
    long = Request("long", 5000)
    waiting = [long]
    queue.sort(waiting, 0)
    waiting = [Request("a", 40, 500), Request("b", 60, 500), Request("c", 30, 500)]
    queue.sort(waiting, 500)
    assert names(waiting) == ["c", "a", "b"]
    assert queue.chunk_limit(long, waiting, 512, 16) == 512 - 32 - 48 - 64
    # At most the share, whatever waits.
    assert queue.chunk_limit(long, waiting, 160, 16) == 160 - 32 - 48
    assert queue.chunk_limit(long, waiting, 16, 16) is None
    # Who would not precede it in the queue does not interrupt it.
    later = [Request("later", 40, 6000)]
    queue.sort(later, 6000)
    assert queue.chunk_limit(long, later, 512, 16) is None
    assert queue.chunk_limit(Request("unknown", 9), waiting, 512, 16) is None


async def ask(engine: Any, ids: list[int], **more: Any) -> Any:
    return await engine.async_generate(input_ids=ids, sampling_params=greedy(1), **more)


def prompt(shared: list[int], own: int, seed: int) -> list[int]:
    return shared + random_prompt(own, seed)


@pytest.mark.engine
def test_the_engine_serves_the_least_uncached_work_first(engines: Engines) -> None:
    engine = engines.get(mtp=True)
    order = engine.loop.run_until_complete(_order(engine))
    # The one in progress shares its passes with whoever precedes it.
    assert [name for name in order if name != "plug"] == ["gold", "hot", "short", "cold"]


async def _order(engine: Any) -> list[str]:
    system = random_prompt(600, 1)
    await ask(engine, system)
    order: list[str] = []

    async def timed(name: str, ids: list[int], **more: Any) -> None:
        await ask(engine, ids, **more)
        order.append(name)

    tasks = [asyncio.create_task(timed("plug", random_prompt(1000, 2)))]
    await asyncio.sleep(0.02)
    wanted = {
        "cold": (random_prompt(700, 3), {}),
        "hot": (prompt(system, 90, 4), {}),
        "short": (random_prompt(120, 5), {}),
        "gold": (random_prompt(640, 6), {"priority": 1}),
    }
    tasks += [asyncio.create_task(timed(name, ids, **more)) for name, (ids, more) in wanted.items()]
    await asyncio.gather(*tasks)
    return order


@pytest.mark.engine
def test_case_104_in_the_engine_a_cold_request_starts_within_the_bound(engines: Engines) -> None:
    engine = engines.get(mtp=True)
    cold_tokens, hot_tokens, clients = 2000, 50, 6
    overtook = engine.loop.run_until_complete(_overtook(engine, cold_tokens, hot_tokens, clients))
    # A closed loop of clients: one joins for each that is served. Its own prefill shares half
    # of each pass, until nobody that waits may overtake any more.
    window = QueuePolicy().bound(cold_tokens, clients * hot_tokens, 1.0, hot_tokens)
    assert overtook <= 1.5 * window / hot_tokens + clients


async def _overtook(engine: Any, cold_tokens: int, hot_tokens: int, clients: int) -> int:
    """Hot requests served from the moment a cold one joins until it is done."""
    shared = random_prompt(150, 7)
    await ask(engine, shared)
    done, running = asyncio.Event(), asyncio.Event()
    served: list[int] = []

    async def hot(client: int) -> None:
        number = 0
        while not done.is_set():
            await ask(engine, prompt(shared, hot_tokens, 1000 * client + number))
            served.append(client)
            if len(served) == 2 * clients:
                running.set()
            number += 1

    async def cold() -> int:
        await running.wait()
        before = len(served)
        await ask(engine, random_prompt(cold_tokens, 8))
        done.set()
        return len(served) - before

    overtook, *_ = await asyncio.gather(cold(), *(hot(client) for client in range(clients)))
    return overtook


def test_the_engine_argument_names_all_parameters() -> None:
    assert schedule_policy(1.0, 5.0, 0.5) == (
        'compute-aware:{"penalty": 1.0, "head_start": 5.0, "chunk_share": 0.5}'
    )
