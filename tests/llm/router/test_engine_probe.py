"""What the probe says of the real engine, against what the engine then finds in its cache."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from llm.router.engine_probe import ASK, decode_states
from llm.router.probe import Held
from tests.llm.engines import Engines, greedy, random_prompt

pytestmark = pytest.mark.engine


class Conversations:
    """Random conversations over shared beginnings; predicts each request's cached tokens."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.sequences: dict[str, list[int]] = {}
        self.predicted: list[int] = []
        self.found: list[int] = []

    async def states(self) -> dict[str, Held]:
        from sglang.srt.managers.io_struct import GetInternalStateReq

        manager = self.engine.tokenizer_manager
        manager.auto_create_handle_loop()
        (answer,) = await manager.get_internal_state_communicator(GetInternalStateReq(rid=ASK))
        assert answer.internal_state["load"] == 0
        return decode_states(answer.internal_state)

    async def usable(self, prompt: list[int]) -> int:
        best = 0
        for name, held in (await self.states()).items():
            tokens = self.sequences.get(name)
            if tokens is None:
                continue
            common = next(
                (i for i, (a, b) in enumerate(zip(tokens, prompt, strict=False)) if a != b),
                min(len(tokens), len(prompt)),
            )
            best = max([best, *(stop for stop in held.stops if stop <= common)])
        return best

    async def ask(self, prompt: list[int]) -> list[int]:
        self.predicted.append(await self.usable(prompt))
        rid = uuid.uuid4().hex
        reply = await self.engine.async_generate(
            input_ids=prompt, sampling_params=greedy(6), rid=rid
        )
        self.found.append(reply["meta_info"]["cached_tokens"])
        self.sequences[rid] = prompt + reply["output_ids"]
        return self.sequences[rid]


async def converse(engine: Any) -> Conversations:
    talk = Conversations(engine)
    await engine.tokenizer_manager.flush_cache()
    chance = random.Random(3)
    systems = [random_prompt(150, seed) for seed in (1, 2)]
    chats = [systems[i % 2] + random_prompt(40, 10 + i) for i in range(6)]
    for step in range(36):
        if step in (16, 17, 18):
            # Nearly the whole pool: what the conversations had is evicted.
            await talk.ask(random_prompt(2700, 100 + step))
            continue
        number = chance.randrange(6)
        chats[number] = await talk.ask(chats[number])
        chats[number] += random_prompt(chance.randrange(20, 70), 1000 + step)
    return talk


def test_the_probe_promises_what_the_engine_then_finds(engines: Engines) -> None:
    engine = engines.get(mtp=True)
    talk = engine.loop.run_until_complete(converse(engine))
    for predicted, found in zip(talk.predicted, talk.found, strict=True):
        # Keys of drafting are one token shorter than what they stand for.
        assert predicted <= found + 2, (talk.predicted, talk.found)
    assert sum(talk.found) > 4000
    assert sum(talk.predicted) >= 0.95 * sum(talk.found), (talk.predicted, talk.found)


def test_other_questions_are_answered_by_sglang(engines: Engines) -> None:
    engine = engines.get(mtp=True)
    (state,) = engine.loop.run_until_complete(engine.tokenizer_manager.get_internal_state())
    assert "prefixes" not in state
    assert state["world_size"] == 1
