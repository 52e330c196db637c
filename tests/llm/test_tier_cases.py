"""Public reports about the tiers below the device; numbers are those of docs/llm-cases.md."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.llm.pool_life import live
from tests.llm.pool_machine import opened
from tests.llm.test_pool_cases import text
from tests.llm.test_tier_machine import sglang_as_needed  # noqa: F401
from tests.llm.tier_machine_world import TieredWorld

PAGE = 4


class RoomyTiers(TieredWorld):
    """Pools that hold all of a case."""

    def sizes(self) -> tuple[int, int]:
        full, swa = super().sizes()
        return 4 * full, 4 * swa


@pytest.fixture
def world() -> Iterator[TieredWorld]:
    with opened(RoomyTiers, PAGE, 8, True) as world:
        assert isinstance(world, TieredWorld)
        yield world


def free_on_host(world: TieredWorld) -> dict[str, int]:
    return {name: world.host(name).available_size() for name in ("kv", "swa")}


@pytest.mark.parametrize("length", [5 * PAGE - 1, 5 * PAGE, 5 * PAGE + 1, 5 * PAGE + 2])
def test_75_what_the_store_brings_is_what_the_match_uses(world: TieredWorld, length: int) -> None:
    prompt = text(length, length)
    live(world, prompt)
    world.forget(host=True)
    world.arrive(prompt)
    req = world.waiting[-1]
    assert world.admit(req, 1 << 30)
    # All but the last token, less one for pairs, in whole pages.
    assert world.last_hit == (length - 2) // PAGE * PAGE
    assert world.counts["came from the store"] == 1
    world.abort(req)
    world.sound()


def test_83_a_request_that_leaves_before_its_kv_comes_holds_nothing(world: TieredWorld) -> None:
    """The store answers late, when nobody waits any more; its answer is dropped."""
    prompt = text(5 * PAGE + 2, 1)
    live(world, prompt)
    world.forget(host=True)
    before = free_on_host(world)
    store, began, answer = world.storage.store, threading.Event(), threading.Event()
    get = store.get

    def late(*arguments: object) -> object:
        began.set()
        assert answer.wait(20)
        return get(*arguments)

    store.get = late
    world.arrive(prompt)
    world.until(began.is_set)
    assert free_on_host(world) != before, "nothing was reserved"
    world.leave_queue(world.waiting[-1])
    world.pump()
    answer.set()
    world.until(lambda: free_on_host(world) == before)
    store.get = get
    live(world, prompt)
    assert world.counts["came from the store"] == 1


def test_84_leaving_between_load_start_and_load_done_again_and_again(world: TieredWorld) -> None:
    prompt = text(5 * PAGE + 2, 1)
    live(world, prompt)
    world.forget(host=True)
    before = free_on_host(world)
    for _ in range(200):
        world.arrive(prompt)
        world.leave_queue(world.waiting[-1])
        world.pump()
    world.until(lambda: free_on_host(world) == before)
    world.sound()
