"""Expert feed-forward against a naive twin, and against the form of SGLang it replaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.cpu import moe

FORMS = [moe.experts, moe._dense, moe._grouped]


def draw(tokens: int, k: int, experts: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens, experts, generator=generator)
    weights, ids = scores.topk(k)
    return (
        torch.randn(tokens, 12, generator=generator),
        torch.randn(experts, 10, 12, generator=generator),
        torch.randn(experts, 12, 5, generator=generator),
        weights,
        ids.int(),
    )


def naive(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        for weight, expert in zip(weights[t], ids[t], strict=True):
            gate, up = (w13[expert] @ x[t]).chunk(2)
            out[t] += weight * (w2[expert] @ (F.silu(gate) * up))
    return out


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 40),
    k=st.integers(1, 4),
    experts=st.sampled_from([4, 7, 60]),
    seed=st.integers(0, 1000),
)
def test_every_form_equals_the_naive_twin(tokens: int, k: int, experts: int, seed: int) -> None:
    inputs = draw(tokens, k, experts, seed)
    expected = naive(*inputs)
    for form in FORMS:
        torch.testing.assert_close(form(*inputs), expected, atol=1e-4, rtol=1e-4)
    first = (inputs[0][:1], *inputs[1:3], inputs[3][:1], inputs[4][:1])
    torch.testing.assert_close(moe._one_token(*first), expected[:1], atol=1e-4, rtol=1e-4)


def layer_and_method(**config: Any) -> tuple[Any, Any]:
    """A layer and its method as ``forward`` sees them; the fallback returns a marker."""
    _, w13, w2, _, _ = draw(1, 2, 6, 0)
    settings = {
        "activation": "silu",
        "gemm1_alpha": None,
        "gemm1_clamp_limit": None,
        "apply_router_weight_on_input": False,
    } | config
    layer = SimpleNamespace(
        w13_weight=w13, w2_weight=w2, num_experts=6, moe_runner_config=SimpleNamespace(**settings)
    )
    method = SimpleNamespace(
        moe_runner_config=layer.moe_runner_config, forward_cpu=lambda *args: "original"
    )
    return layer, method


@pytest.mark.parametrize("tokens", [1, 4, 30])
def test_forward_equals_the_form_it_replaces(tokens: int) -> None:
    from sglang.srt.layers.moe import fused_moe_native

    layer, method = layer_and_method()
    x, _, _, weights, ids = draw(tokens, 2, 6, tokens)
    given = SimpleNamespace(hidden_states=x, topk_output=(weights, ids, None))
    expected = fused_moe_native.fused_moe_forward_native(layer, given).hidden_states
    result = moe.forward(method, layer, given).hidden_states
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


def test_other_experts_keep_the_original() -> None:
    x, _, _, weights, ids = draw(3, 2, 6, 0)
    given = SimpleNamespace(hidden_states=x, topk_output=(weights, ids, None))
    for change in ({"activation": "gelu"}, {"gemm1_alpha": 1.7}):
        layer, method = layer_and_method(**change)
        assert moe.forward(method, layer, given) == "original"
    layer, method = layer_and_method()
    layer.w2_weight_bias = torch.zeros(6, 12)
    assert moe.forward(method, layer, given) == "original"
