"""SGLang on our CPU platform against transformers' MiMo-V2-Flash (tools/pocket/oracle.py).

The checkpoint's window is 32 tokens, so prompts of 20 and 300 tokens stand on both sides of it;
128-token prefill chunks cut the long ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from encoders.embedding import Modality
from llm.prompt import MediaSpan
from tests.llm.engines import (
    Engines,
    greedy,
    oracle_greedy,
    oracle_logprobs,
    random_prompt,
)
from tools.pocket.oracle import load_oracle

pytestmark = pytest.mark.engine

LENGTHS = (5, 20, 33, 129, 300)
NEW = 24


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "mtp"])
def mtp(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def expected(oracle: Any) -> dict[int, list[int]]:
    return {n: oracle_greedy(oracle, random_prompt(n, n), NEW) for n in LENGTHS}


def test_greedy_tokens_single_batched_and_after_prefix_hits(
    engines: Engines, expected: dict[int, list[int]], mtp: bool
) -> None:
    engine = engines.get(mtp=mtp)
    engine.flush_cache()
    prompts = {n: random_prompt(n, n) for n in LENGTHS}

    for n in LENGTHS:
        out = engine.generate(input_ids=prompts[n], sampling_params=greedy(NEW))
        assert out["output_ids"] == expected[n], f"cold, {n} tokens"
        assert out["meta_info"]["cached_tokens"] == 0

    for n in LENGTHS:
        out = engine.generate(input_ids=prompts[n], sampling_params=greedy(NEW))
        assert out["output_ids"] == expected[n], f"after a prefix hit, {n} tokens"
        # MTP keys of the prefix tree are one token shorter.
        assert out["meta_info"]["cached_tokens"] >= n - 2

    engine.flush_cache()
    batch = engine.generate(
        input_ids=[prompts[n] for n in LENGTHS],
        sampling_params=[greedy(NEW) for _ in LENGTHS],
    )
    assert [out["output_ids"] for out in batch] == [expected[n] for n in LENGTHS]


def test_a_conversation_grows_through_the_prefix_cache(
    engines: Engines, oracle: Any, mtp: bool
) -> None:
    engine = engines.get(mtp=mtp)
    engine.flush_cache()
    ids = random_prompt(60, 1)
    for turn in range(4):
        out = engine.generate(input_ids=ids, sampling_params=greedy(12))
        assert out["output_ids"] == oracle_greedy(oracle, ids, 12), f"turn {turn}"
        if turn:
            assert out["meta_info"]["cached_tokens"] > 60
        ids = ids + out["output_ids"] + random_prompt(25, 100 + turn)


def test_embedding_rows_give_the_logits_of_the_same_input_embeddings(
    engines: Engines, oracle: Any, mtp: bool
) -> None:
    """Rows through the processor = rows put into transformers' input embeddings."""
    engine = engines.get(mtp=mtp)
    engine.flush_cache()
    text = random_prompt(180, 5)
    table = oracle.get_input_embeddings().weight.detach()
    embeds = table[torch.tensor(text)].clone()
    generator = torch.Generator().manual_seed(3)
    # A sound, an image in two runs, one of them across the border of prefill chunks.
    runs: dict[Modality, list[tuple[int, int]]] = {
        "audio": [(10, 7)],
        "image": [(40, 30), (110, 40)],
    }
    spans = []
    modality: Modality
    for modality, offsets in runs.items():
        rows = torch.randn(sum(c for _, c in offsets), table.shape[1], generator=generator) * 0.5
        at = 0
        for start, count in offsets:
            embeds[start : start + count] = rows[at : at + count]
            at += count
        spans.append(MediaSpan(modality, tuple(offsets), rows, modality.encode().ljust(32)))
    reference = oracle_logprobs(oracle, embeds)

    for attempt in ("cold", "after a hit"):
        out = engine.generate(
            input_ids=text,
            image_data=spans,
            sampling_params=greedy(1),
            return_logprob=True,
            top_logprobs_num=20,
        )
        got = out["meta_info"]["output_top_logprobs"][0]
        tokens = torch.tensor([token for _, token, _ in got])
        values = torch.tensor([value for value, _, _ in got])
        assert tokens.tolist()[0] == int(reference[-1].argmax()), attempt
        torch.testing.assert_close(values, reference[-1][tokens], atol=2e-3, rtol=1e-3)


def test_equal_text_with_other_rows_shares_no_kv(engines: Engines) -> None:
    """Different pictures under the same words must not hit each other's prefix."""
    engine = engines.get(mtp=True)
    engine.flush_cache()
    text = random_prompt(90, 6)

    def ask(seed: int) -> tuple[list[int], int]:
        rows = torch.randn(40, 192, generator=torch.Generator().manual_seed(seed)) * 0.5
        span = MediaSpan("image", ((20, 40),), rows, bytes([seed]) * 32)
        out = engine.generate(input_ids=text, image_data=[span], sampling_params=greedy(8))
        return out["output_ids"], out["meta_info"]["cached_tokens"]

    first, cold = ask(1)
    other, shared = ask(2)
    again, hit = ask(1)
    assert cold == 0
    assert shared <= 20
    assert first != other
    assert again == first
    assert hit >= 88


def test_the_window_may_count_the_query_itself(
    engines: Engines, oracle: Any, pocket_checkpoint: Path, tmp_path: Path
) -> None:
    """The oracle of a checkpoint whose window is one less: 32 keys with the query, not 33."""
    for file in pocket_checkpoint.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((pocket_checkpoint / "config.json").read_text())
    config["sliding_window_size"] -= 1
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    narrow = load_oracle(tmp_path)
    prompt = random_prompt(90, 8)
    expected = oracle_greedy(narrow, prompt, NEW)
    assert expected != oracle_greedy(oracle, prompt, NEW)
    engine = engines.get(mtp=True, window_counts_self=True)
    for _ in range(2):
        out = engine.generate(input_ids=prompt, sampling_params=greedy(NEW))
        assert out["output_ids"] == expected
