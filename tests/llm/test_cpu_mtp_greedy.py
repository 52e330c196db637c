"""The one-call MTP step against its parts: verify pass, acceptance loop, draft layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.cpu.decoder import NativeDecoder
from llm.cpu.draft import NativeDraft
from llm.cpu.mtp_greedy import GreedyStep
from llm.cpu.mtp_steps import shifted
from tests.llm.decoder_model import (
    EPSILON,
    HIDDEN,
    Pools,
    linear,
    make_batch,
    make_layer,
    model,
    native,
)

VOCABULARY, STEPS = 50, 3


def norm(generator: torch.Generator) -> Any:
    weight = torch.rand(HIDDEN, generator=generator) + 0.5
    return SimpleNamespace(weight=weight, variance_epsilon=EPSILON)


def worker(seed: int) -> Any:
    """What a ``MultiLayerEagleWorkerV2`` has of interest; head and embeddings are shared."""
    generator = torch.Generator().manual_seed(seed)
    layers, final = model(5, seed)
    # Layers that say little make the next token follow from the last one, so drafts come true.
    for layer in layers:
        layer.self_attn.o_proj.weight.data *= 0.0625
    embeddings = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    head = linear(VOCABULARY + 14, HIDDEN, generator)
    config = SimpleNamespace(vocab_size=VOCABULARY)

    def runner(decoder: Any, pools: Pools) -> Any:
        holder = SimpleNamespace(
            config=config,
            decoder=decoder,
            model=SimpleNamespace(embed_tokens=SimpleNamespace(weight=embeddings)),
            lm_head=head,
        )
        return SimpleNamespace(model=holder, attn_backend=pools)

    target_pools = Pools(layers, torch.float32, seed)
    drafts = []
    for step in range(STEPS):
        layer = make_layer(0, 5, False, generator)
        start = torch.cat(
            (torch.eye(HIDDEN), torch.randn(HIDDEN, HIDDEN, generator=generator) * 0.01), 1
        )
        module = SimpleNamespace(
            mtp_block=layer,
            final_layernorm=norm(generator),
            enorm=norm(generator),
            hnorm=norm(generator),
            eh_proj=SimpleNamespace(weight=torch.nn.Parameter(start, False), bias=None),
        )
        pools = Pools([layer], torch.float32, seed + step)
        # Drafts use the target's slots and request table.
        pools.req_to_token = target_pools.req_to_token
        pools.full_to_swa_index_mapping = target_pools.full_to_swa_index_mapping
        drafts.append(runner(NativeDraft(native(), module, torch.float32), pools))
    target = runner(NativeDecoder(native(), layers, final, torch.float32), target_pools)
    return SimpleNamespace(
        target_worker=SimpleNamespace(model_runner=target),
        draft_worker=SimpleNamespace(draft_runner_list=drafts),
    )


def parts(
    built: Any, requests: list[int], prefix: list[int], last: torch.Tensor, drafted: torch.Tensor
) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """(predicted [B, n], accepted, next drafts [B, STEPS]) by separate calls."""
    target = built.target_worker.model_runner
    table, head = target.model.model.embed_tokens.weight, target.model.lm_head.weight[:VOCABULARY]
    ids = torch.cat((last.unsqueeze(1), drafted), 1)
    size, rows = ids.shape
    batch = make_batch("verify", target.attn_backend, requests, prefix, [rows] * size)
    hidden, _ = target.model.decoder.forward(table[ids.flatten()], batch, target.attn_backend)
    predicted = (hidden @ head.t()).argmax(-1).view(size, rows)
    accepted = []
    for of_request, told in zip(ids.tolist(), predicted.tolist(), strict=True):
        count = 1
        while count < rows and of_request[count] == told[count - 1]:
            count += 1
        accepted.append(count)
    end = torch.tensor(accepted) - 1
    tokens: list[torch.Tensor] = []
    moved = predicted
    for runner in built.draft_worker.draft_runner_list:
        if tokens:
            moved = shifted(moved, end, tokens[-1])
        states, _ = runner.model.decoder.forward(
            moved.flatten(), hidden, table, batch, runner.attn_backend
        )
        chosen = states.view(size, rows, -1)[torch.arange(size), end]
        tokens.append((chosen @ head.t()).argmax(-1))
    return predicted, accepted, torch.stack(tokens, 1)


@settings(max_examples=15, deadline=None)
@given(
    prefix=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    rows=st.sampled_from([1, 4]),
    seed=st.integers(0, 500),
)
def test_equals_its_parts(prefix: list[int], rows: int, seed: int) -> None:
    """Three steps in a row, so that the draft layers' own KV counts."""
    one, other = worker(seed), worker(seed)
    step = GreedyStep(one)
    generator = torch.Generator().manual_seed(seed)
    requests = torch.randperm(4, generator=generator)[: len(prefix)].tolist()
    last = torch.randint(0, VOCABULARY, (len(prefix),), generator=generator)
    drafted = torch.randint(0, VOCABULARY, (len(prefix), STEPS), generator=generator)
    at = list(prefix)
    for _ in range(3):
        predicted, accepted, following = parts(other, requests, at, last, drafted[:, : rows - 1])
        batch = SimpleNamespace(
            seq_lens=torch.tensor(at),
            req_pool_indices=torch.tensor(requests),
            spec_info=SimpleNamespace(bonus_tokens=last.int(), topk_index=drafted),
        )
        result = step.run(batch, rows)
        assert result.accept_lens.tolist() == accepted
        told = result.next_token_ids.view(len(at), rows).tolist()
        for mine, theirs, count in zip(told, predicted.tolist(), accepted, strict=True):
            assert mine[:count] == theirs[:count]
        assert result.next_draft_input.topk_index.tolist() == following.tolist()
        bonus = [row[count - 1] for row, count in zip(told, accepted, strict=True)]
        assert result.next_draft_input.bonus_tokens.tolist() == bonus
        at = [position + count for position, count in zip(at, accepted, strict=True)]
        assert result.new_seq_lens.tolist() == at
        last, drafted = torch.tensor(bonus), following


@pytest.mark.parametrize(
    "change",
    [
        {"is_all_greedy": False},
        {"logit_bias": torch.zeros(1)},
        {"acc_additive_penalties": torch.zeros(1)},
        {"acc_scaling_penalties": torch.ones(1)},
        {"has_custom_logit_processor": True},
        {"has_grammar": True},
        {"return_logprob": True},
        {"return_hidden_states": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_only_plain_greedy_batches_take_it(change: dict[str, Any]) -> None:
    info = {
        "is_all_greedy": True, "acc_additive_penalties": None, "acc_scaling_penalties": None,
        "logit_bias": None, "has_custom_logit_processor": False, "has_watermark_candidates": False,
    }  # fmt: skip
    batch = {"has_grammar": False, "return_logprob": False, "return_hidden_states": False}

    def made(values: dict[str, Any]) -> Any:
        own = {k: values.get(k, v) for k, v in info.items()}
        return SimpleNamespace(
            sampling_info=SimpleNamespace(**own), **{k: values.get(k, v) for k, v in batch.items()}
        )

    assert GreedyStep.fits(made({}))
    assert not GreedyStep.fits(made(change))
