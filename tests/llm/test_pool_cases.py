"""Public reports about pools, tree and MTP keys, on SGLang's own tree and allocators.

Numbers are those of docs/llm-cases.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.llm.pool_life import live, prefill
from tests.llm.pool_machine import opened
from tests.llm.pool_machine_world import World, configured


@pytest.fixture(scope="module", autouse=True)
def sglang_as_needed() -> Iterator[None]:
    with configured():
        yield


def text(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1, 500), k=length)


class Roomy(World):
    """Pools that hold all of a case."""

    def sizes(self) -> tuple[int, int]:
        full, swa = super().sizes()
        return 4 * full, 2 * swa


@pytest.mark.parametrize("length", [1023, 1024, 1025, 1026])
def test_71_a_key_one_shorter_than_its_tokens_still_finds_the_tail_window(length: int) -> None:
    with opened(Roomy, 64, 127, True) as world:
        prompt = text(length, 1)
        live(world, prompt)
        # Keys are pairs of tokens: one less than tokens, in whole pages.
        assert world.lookup(prompt) == (length - 1) // 64 * 64
        live(world, prompt)
        world.close()


class Lopsided(World):
    """A window pool that fills long before the full one."""

    def sizes(self) -> tuple[int, int]:
        full, swa = super().sizes()
        return 20 * full, 6 * swa


def test_73_a_full_window_pool_of_cached_slots_is_room() -> None:
    with opened(Lopsided, 1, 8, False) as world:
        allocator, seed = world.allocator, 0
        while not world.counts["window pressed out"]:
            live(world, text(9, seed), 1)
            seed += 1
            assert seed < 100, "the window pool does not fill"
        assert allocator.full_available_size() > allocator.size_full // 2
        assert world.counts["refused"] == 0


def test_74_the_tail_window_of_a_parked_conversation_goes_last() -> None:
    """What is pressed out first are windows that only shorter prefixes end at."""
    with opened(Lopsided, 1, 8, False) as world:
        parked = text(60, 1)
        live(world, parked, chunk=20)
        seed = 2
        while not world.counts["window pressed out"]:
            live(world, text(6, seed), 1)
            seed += 1
        assert world.lookup(parked) == 60


@pytest.mark.parametrize("page", [1, 4, 16])
def test_80_what_pairs_of_tokens_cost_a_hit(page: int) -> None:
    """One token, so with pages of one token as much; a page where that token began one."""
    for length in range(3 * page, 4 * page + 3):
        found = {}
        for drafting in (False, True):
            with opened(Roomy, page, 8, drafting) as world:
                prompt = text(length, length)
                live(world, prompt)
                req = prefill(world, prompt)
                found[drafting] = world.last_hit
                world.abort(req)
        lost = found[False] - found[True]
        assert lost == (page if (length - 1) % page == 0 else 0), (length, found)


@pytest.mark.parametrize("chunk", [1, 3, 7, 8, 9])
def test_81_a_chunk_never_frees_what_its_window_needs(chunk: int) -> None:
    """Chunks of 1, 3, W - 1, W and W + 1: each reads a complete window of its own tokens."""
    with opened(Lopsided, 1, 8, False) as world:
        prompt = text(40, chunk)
        live(world, prompt, 12, chunk=chunk)
        live(world, [*prompt, *text(6, 99)], 12, chunk=chunk)
        assert world.counts["part of a prompt"] >= 40 // chunk - 1
        world.close()
