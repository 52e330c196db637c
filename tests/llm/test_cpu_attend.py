"""Attention arithmetic against a plain twin with explicit masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.cpu.attend import additive, apply_sinks, attend, merge, prefill_full, prefill_window

SCALE = 0.3


def naive(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    prefix: int,
    window: int,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q [n, H, D] at positions prefix.., k, v [prefix + n, G, *] -> [n, H, V]; loops only."""
    n, heads, _ = q.shape
    out = torch.zeros(n, heads, v.shape[-1])
    for i in range(n):
        position = prefix + i
        first = 0 if window < 0 else max(0, position - window)
        for h in range(heads):
            g = h // (heads // k.shape[1])
            logits = k[first : position + 1, g] @ q[i, h] * SCALE
            if sinks is not None:
                logits = torch.cat((logits, sinks[h : h + 1]))
            weights = logits.softmax(0)[: position + 1 - first]
            out[i, h] = weights @ v[first : position + 1, g]
    return out


def tensors(n: int, prefix: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return draw(n, 4, 6), draw(prefix + n, 2, 6), draw(prefix + n, 2, 5)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 30),
    prefix=st.integers(0, 40),
    window=st.sampled_from([-1, 1, 4, 8, 50]),
    sinks=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_prefill_equals_the_naive_twin(
    n: int, prefix: int, window: int, sinks: bool, seed: int
) -> None:
    q, k, v = tensors(n, prefix, seed)
    sink = torch.linspace(-2, 5, 4) if sinks else None
    own_k, own_v = k[prefix:], v[prefix:]
    if window < 0:
        cached = (k[:prefix], v[:prefix]) if prefix else None
        part = prefill_full(q, own_k, own_v, SCALE, cached)
    else:
        first = max(0, prefix - window)
        tail = (k[first:prefix], v[first:prefix]) if prefix else None
        part = prefill_window(q, own_k, own_v, SCALE, window, tail)
    got = apply_sinks(part, sink)[0].transpose(0, 1)
    torch.testing.assert_close(got, naive(q, k, v, prefix, window, sink), atol=1e-5, rtol=1e-4)


def test_merge_is_attention_over_the_union() -> None:
    q, k, v = tensors(3, 17, 0)
    heads = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
    whole = attend(*heads, SCALE)
    left = attend(heads[0], heads[1][:, :, :8], heads[2][:, :, :8], SCALE)
    right = attend(heads[0], heads[1][:, :, 8:], heads[2][:, :, 8:], SCALE)
    both = merge(left, right)
    torch.testing.assert_close(both.out, whole.out)
    torch.testing.assert_close(both.lse, whole.lse)


# case 82
def test_a_sink_changes_the_output_and_none_leaves_it() -> None:
    q, k, v = tensors(2, 3, 1)
    part = attend(*(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)), SCALE)
    assert torch.equal(apply_sinks(part, None), part.out)
    assert (apply_sinks(part, torch.full((4,), 3.0)) - part.out).abs().max() > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_additive_mask(dtype: torch.dtype) -> None:
    mask = additive(torch.tensor([[True, False]]), dtype)
    assert mask.dtype == dtype
    assert mask.tolist() == [[0.0, float("-inf")]]
