"""Mixture-of-experts feed-forward in float or bfloat16, without work for experts nobody chose.

Shapes: T tokens, k experts per token, E experts, H hidden width, I expert width. ``w13``
[E, 2 I, H] holds gate and up projections, ``w2`` [E, H, I] the down projections; ``weights``
[T, k] and ``ids`` [T, k] are the router's choice. Every form computes
sum_j weights[t, j] * w2[ids[t, j]] (silu(gate) * up).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

# Up to so many tokens, computing rows that are multiplied by zero is cheaper than sorting.
MAX_DENSE_TOKENS = 16


def experts(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """``x`` [T, H] -> [T, H], by whichever form is fastest for these sizes."""
    tokens, k = ids.shape
    if tokens == 1:
        return _one_token(x, w13, w2, weights, ids)
    if tokens <= MAX_DENSE_TOKENS and tokens * k >= w13.shape[0]:
        return _dense(x, w13, w2, weights, ids)
    return _grouped(x, w13, w2, weights, ids)


def _one_token(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """The chosen experts' weights where they lie: gathering them would copy them."""
    out = torch.zeros_like(x)
    for expert, weight in zip(ids[0].tolist(), weights[0].tolist(), strict=True):
        out.add_(F.linear(_gated(F.linear(x, w13[expert])), w2[expert]), alpha=weight)
    return out


def _dense(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """All experts on all tokens in two batched products, for when most experts are chosen."""
    hidden = _gated(torch.matmul(x, w13.transpose(1, 2)))
    share = x.new_zeros(x.shape[0], w13.shape[0])
    share.scatter_(1, ids.long(), weights.to(x.dtype))
    return torch.bmm(hidden.mul_(share.t().unsqueeze(2)), w2.transpose(1, 2)).sum(0)


def _grouped(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Rows sorted by expert; one product per expert that has any, one activation for all."""
    flat = ids.reshape(-1).long()
    order = flat.argsort()
    tokens = order // ids.shape[1]
    ends = torch.bincount(flat, minlength=w13.shape[0]).cumsum(0).tolist()
    groups = [
        (expert, slice(start, end))
        for expert, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        if end > start
    ]
    rows = x.index_select(0, tokens)
    hidden = x.new_empty(len(flat), w13.shape[1])
    for expert, own in groups:
        torch.mm(rows[own], w13[expert].t(), out=hidden[own])
    gated = _gated(hidden)
    gated.mul_(weights.reshape(-1)[order].to(x.dtype).unsqueeze(1))
    out = x.new_empty(len(flat), w2.shape[1])
    for expert, own in groups:
        torch.mm(gated[own], w2[expert].t(), out=out[own])
    return torch.zeros_like(x).index_add_(0, tokens, out)


def _gated(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def forward(self: Any, layer: Any, dispatch_output: Any) -> Any:
    """``UnquantizedFusedMoEMethod.forward`` for plain SwiGLU experts; others as before."""
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    config = self.moe_runner_config
    plain = (
        config.activation == "silu"
        and config.gemm1_alpha is None
        and config.gemm1_clamp_limit is None
        and not config.apply_router_weight_on_input
        and getattr(layer, "w13_weight_bias", None) is None
        and getattr(layer, "w2_weight_bias", None) is None
    )
    x = dispatch_output.hidden_states
    if not plain or not x.shape[0]:
        return self.forward_cpu(layer, dispatch_output)
    weights, ids, _ = dispatch_output.topk_output
    return StandardCombineInput(
        hidden_states=experts(x, layer.w13_weight, layer.w2_weight, weights, ids)
    )
