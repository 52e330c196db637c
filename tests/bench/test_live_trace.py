"""Chats made of a trace, the workload of their tokens, and the cost model fitted to answers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bench.chats import Answer
from bench.live_cost import Readings, fitted
from bench.live_trace import Messages, calls, filled, words, workload
from tests.tools.replay.fleets import COST, conversations
from tools.replay.workload import Workload


def trace() -> Workload:
    made = conversations(6, 4, seed=3)
    return replace(made, input_tokens=made.input_tokens * 100)


def test_each_turn_of_a_conversation_continues_the_one_before() -> None:
    recorded = trace()
    found = calls(recorded, sessions=4, shrink=50.0, seed=0)
    assert len(found) == 16
    assert [call.at for call in found] == sorted(call.at for call in found)
    turns: dict[int, int] = {}
    for call in found:
        turns[call.session] = turns.get(call.session, 0) + 1
        # A system prompt that all share, then questions with answers between them.
        assert len(call.messages) == 2 * turns[call.session]
        assert call.messages[0] == found[0].messages[0]
        earlier = [c for c in found if c.session == call.session and c.at < call.at]
        for other in earlier:
            assert call.messages[: len(other.messages)] == other.messages
    assert calls(recorded, sessions=4, shrink=50.0, seed=0) == found


def test_text_has_about_the_tokens_asked_for() -> None:
    from transformers import AutoTokenizer

    from app.settings import checkpoint_directory, config_path, load_settings

    path = str(checkpoint_directory(load_settings(config_path(None))))
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=True)
    for tokens in (50, 500, 3000):
        text = words(random.Random(1), tokens)
        assert len(tokenizer(text).input_ids) == pytest.approx(tokens, rel=0.15)


def test_a_prompt_is_filled_up_to_a_number_of_tokens() -> None:
    def count(messages: Messages) -> int:
        return 7 + 2 * len(messages[0]["content"].split())

    for tokens in (60, 61, 512):
        found = filled(random.Random(tokens), count, tokens)
        assert tokens - 2 < count(found) <= tokens
        assert found == filled(random.Random(tokens), count, tokens)


def test_equal_prefixes_of_tokens_are_equal_blocks() -> None:
    some = calls(trace(), sessions=2, shrink=50.0, seed=0)[:3]
    made = workload("live", some, [[5, 6, 7], [5, 6, 8, 9], [6, 7]], 8)
    first, second, third = (made.path(i) for i in range(3))
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    # The same tokens after another beginning are other blocks.
    assert not set(third) & set(first)
    assert made.infinite_hits() == pytest.approx(2 / 9)
    assert made.output_tokens.tolist() == [8, 8, 8]


def test_the_cost_model_is_recovered_from_answers() -> None:
    truth = replace(COST, fixed_s=0.4, gateway_s=0.1, crowding=1.4, groups_per_host=2)

    def answer(prompt: int, cached: int, slower: float = 1.0, batch: int = 1) -> Answer:
        first = (
            10.0 + truth.fixed_s + truth.gateway_s + slower * (truth.request_s(prompt, cached, 64))
        )
        between = truth.decode_s(batch, batch * prompt)
        return Answer("", 10.0, [first + i * between for i in range(9)], prompt, cached, 9)

    def early(late: Answer, seconds: float) -> Answer:
        """An answer of the same batch whose decoding waits while the last one is prefilled."""
        return replace(late, pieces=[late.pieces[0] - seconds, *late.pieces[1:]])

    def leaving(first: Answer, number: int) -> Answer:
        """The answer to a chat that passed the gateway behind so many others."""
        later = number * (truth.gateway_s + 30 * truth.token_s / 2)
        return replace(first, pieces=[first.pieces[0] + later, *first.pieces[1:]])

    last = answer(100, 0, batch=4)
    prompts = [(40, 0), (90, 30), (200, 0), (300, 190), (700, 0), (1500, 0), (1600, 1490)]
    clean = Readings(
        [answer(*p) for p in prompts],
        [answer(*p, slower=1.4) for p in prompts],
        [last, *(early(last, 0.1 * i) for i in range(3))],
        [leaving(answer(30, 0), number) for number in range(5)],
        [(answer(60, 0), answer(68, 0)), (answer(90, 28), answer(99, 30))],
        3.0,
    )
    # One round in which something else took the machine changes nothing.
    disturbed = Readings(
        [answer(*p, slower=9.0) for p in prompts],
        [answer(*p, slower=9.0) for p in prompts],
        clean.batch,
        clean.burst,
        [(answer(60, 0, slower=9.0), answer(68, 0))],
        3.0,
    )
    found = fitted([clean, disturbed, clean], 2, 64)
    assert found.crowding == pytest.approx(1.4, rel=0.01)
    assert found.groups_per_host == 2
    assert found.gateway_s == pytest.approx(0.1, rel=0.01)
    assert found.step_s == pytest.approx(truth.step_s, rel=0.02)
    assert found.fixed_s == pytest.approx(truth.fixed_s, rel=0.02)
    for prompt, hit in prompts:
        expected = truth.fixed_s + truth.gateway_s + truth.request_s(prompt, hit, 64)
        outside = found.fixed_s + found.gateway_s
        assert outside + found.request_s(prompt, hit, 64) == pytest.approx(expected, rel=0.01)
    assert found.decode_s(4, 400) == pytest.approx(truth.decode_s(4, 400), rel=0.02)
