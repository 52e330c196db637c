"""Engines that differ from the usual one: without the decoder kernel, with several threads of it,
and in bfloat16."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.llm.engines import Engines, greedy, oracle_greedy, oracle_logprobs, random_prompt

pytestmark = pytest.mark.engine

LENGTHS = (20, 129)
NEW = 8


def answers(engine: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers, cold and alone; the same after a prefix hit and in a batch."""
    engine.flush_cache()
    cold = [engine.generate(input_ids=p, sampling_params=greedy(NEW)) for p in prompts]
    found = [out["output_ids"] for out in cold]
    again = engine.generate(input_ids=prompts[-1], sampling_params=greedy(NEW))
    assert again["output_ids"] == found[-1]
    assert again["meta_info"]["cached_tokens"] >= len(prompts[-1]) - 2
    engine.flush_cache()
    batch = engine.generate(input_ids=prompts, sampling_params=[greedy(NEW) for _ in prompts])
    assert [out["output_ids"] for out in batch] == found
    return found


@pytest.mark.parametrize("mtp", [False, True])
def test_sglangs_own_layers_give_the_same_tokens(engines: Engines, oracle: Any, mtp: bool) -> None:
    """``"decoder_kernel": false``, as on a machine where the kernel does not run."""
    off = json.dumps({"decoder_kernel": False})
    engine = engines.get(mtp=mtp, extra_engine_args={"json_model_override_args": off})
    prompts = [random_prompt(n, n) for n in LENGTHS]
    assert answers(engine, prompts) == [oracle_greedy(oracle, p, NEW) for p in prompts]


def test_threads_do_not_change_an_answer(engines: Engines, oracle: Any) -> None:
    """Three threads: the longer prompt's rows are cut, a batch is split between requests."""
    engine = engines.get(mtp=True, decoder_threads=3)
    prompts = [random_prompt(n, n) for n in (*LENGTHS, 21, 22, 23, 24, 25)]
    assert answers(engine, prompts) == [oracle_greedy(oracle, p, NEW) for p in prompts]


def test_bfloat16_is_repeatable_and_near_float32(engines: Engines, oracle: Any) -> None:
    """Cold, after a hit, in a batch, with and without MTP alike; the first token's
    log-probabilities are nearer to float32's than those of a prompt with one other token."""
    prompts = [random_prompt(n, n) for n in LENGTHS]
    found = {}
    for mtp in (False, True):
        engine = engines.get(mtp=mtp, dtype="bfloat16")
        found[mtp] = answers(engine, prompts)
    assert found[True] == found[False]
    table = oracle.get_input_embeddings().weight.detach()
    for prompt in prompts:
        out = engine.generate(
            input_ids=prompt,
            sampling_params=greedy(1),
            return_logprob=True,
            top_logprobs_num=20,
        )
        top = out["meta_info"]["output_top_logprobs"][0]
        tokens = torch.tensor([token for _, token, _ in top])
        got = torch.tensor([value for value, _, _ in top])

        def float32(ids: list[int], tokens: torch.Tensor = tokens) -> torch.Tensor:
            return oracle_logprobs(oracle, table[torch.tensor(ids)])[-1][tokens]

        exact = float32(prompt)
        other = float32([*prompt[:-10], (prompt[-10] + 1) % 700, *prompt[-9:]])
        error = float((got - exact).abs().max())
        assert error < 0.25
        assert float((other - exact).abs().max()) > 2 * error, "the comparison tells nothing"
