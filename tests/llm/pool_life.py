"""Whole lives of requests in a world of pools, for cases that need no chance."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_batch import Req

from tests.llm.pool_machine_world import World


def prefill(world: World, prompt: list[int], chunk: int = 1 << 30) -> Req:
    """A request through all chunks of its prompt, checked after each."""
    world.arrive(prompt)
    req = world.waiting[-1]
    assert world.admit(req, chunk), "no room for the first chunk"
    world.check()
    while req in world.prefilling:
        assert world.extend(req, chunk), "no room for a chunk"
        world.check()
    return req


def answer(world: World, req: Req, tokens: list[int]) -> None:
    """Decode ``tokens`` and finish."""
    for token in tokens:
        if world.drafting:
            assert world.verify([req], 1, [token, 1, 1, 1])
        else:
            assert world.decode([req], token)
        world.check()
    world.finish(req, 0)
    world.sound()


def live(world: World, prompt: list[int], tokens: int = 4, **how: Any) -> list[int]:
    """Prompt and answer of a request from beginning to end."""
    req = prefill(world, prompt, **how)
    answer(world, req, [1] * tokens)
    return [*req.origin_input_ids, *req.output_ids]
