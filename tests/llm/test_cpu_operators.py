"""Norm, rotary embedding and router against the forms of SGLang that they replace."""

from __future__ import annotations

import inspect

import pytest
import torch

from llm.cpu import operators


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(dtype: torch.dtype) -> None:
    from sglang.srt.layers.layernorm import RMSNorm

    norm = RMSNorm(24, eps=1e-5).to(dtype)
    norm.weight.data = numbers(24).to(dtype)
    x, residual = numbers(5, 24).to(dtype), numbers(5, 24).to(dtype)
    torch.testing.assert_close(operators.rms_norm(norm, x), norm.forward_native(x))
    for ours, theirs in zip(
        operators.rms_norm(norm, x, residual.clone()),
        norm.forward_native(x, residual.clone()),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("width", [6, 16])
def test_rotary(neox: bool, width: int) -> None:
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

    rope = RotaryEmbedding(16, width, 50, 10000, neox, torch.float32)
    positions = torch.tensor([0, 3, 49, 7])
    qkv = numbers(4, 7 * 16)
    before = qkv.clone()
    query, key = qkv[:, : 4 * 16], qkv[:, 4 * 16 : 6 * 16]
    ours = operators.rotary(rope, positions, query, key)
    theirs = rope.forward_native(positions, query, key)
    for mine, original in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, original)
    assert torch.equal(qkv, before)


@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (4, 4), (4, 2)])
@pytest.mark.parametrize("renormalize", [True, False])
def test_router(groups: int, kept: int, renormalize: bool) -> None:
    from sglang.srt.layers.moe import topk

    original = inspect.unwrap(topk.biased_grouped_topk_impl)
    choose = operators.one_group_router(original)
    logits, bias = numbers(9, 16), numbers(16) * 0.1
    arguments = (numbers(9, 3), logits, bias, 3, renormalize, groups, kept)
    (weights, ids), (want_weights, want_ids) = choose(*arguments), original(*arguments)
    assert weights.dtype == want_weights.dtype
    assert ids.dtype == want_ids.dtype
    order, want_order = ids.argsort(), want_ids.argsort()
    assert torch.equal(ids.gather(1, order), want_ids.gather(1, want_order))
    torch.testing.assert_close(weights.gather(1, order), want_weights.gather(1, want_order))
