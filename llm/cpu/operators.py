"""Small operators of every layer, in fewer kernel calls than SGLang's plain PyTorch forms.

A decode step of few rows is call overhead more than arithmetic. Each function takes over the
case that MiMo-V2 has and hands every other to SGLang's own form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def rms_norm(
    self: Any,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
    quant_linear: Any = None,
) -> Any:
    """``RMSNorm.forward`` in float32: x [n, hidden], and with a residual also their sum."""
    plain = (
        x.dtype == self.weight.dtype == torch.float32
        and (residual is None or residual.dtype == torch.float32)
        and self.variance_size_override is None
        and self.override_orig_dtype is None
        and post_residual_addition is None
    )
    if not plain:
        return self.forward_native(x, residual, post_residual_addition, quant_linear)
    if residual is not None:
        x = x + residual
    out = F.rms_norm(x, (self.hidden_size,), self.weight, self.variance_epsilon)
    return out if residual is None else (out, x)


def rotary(
    self: Any,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    offsets: torch.Tensor | None = None,
    fused_set_kv_buffer_arg: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``RotaryEmbedding.forward`` on query [n, H * D] and key [n, G * D] at once."""
    if not self.is_neox_style or offsets is not None or query.dim() != 2:
        own: Callable[..., tuple[torch.Tensor, torch.Tensor]] = self.forward_native
        return own(positions, query, key, offsets, fused_set_kv_buffer_arg)
    assert fused_set_kv_buffer_arg is None
    both = torch.cat((query, key), dim=1)
    cos, sin = (
        self.cos_sin_cache.index_select(0, positions.flatten()).to(both.dtype).unsqueeze(1)
    ).chunk(2, dim=-1)
    heads = both.view(both.shape[0], -1, self.head_size)
    half = self.rotary_dim // 2
    first, second = heads[..., :half], heads[..., half : 2 * half]
    turned = first * cos - second * sin
    second.mul_(cos).add_(first * sin)
    first.copy_(turned)
    return both[:, : query.shape[1]], both[:, query.shape[1] :]


def one_group_router(original: Callable[..., Any]) -> Callable[..., Any]:
    """``biased_grouped_topk_impl`` without choosing groups when all of them are kept."""

    def choose(
        hidden_states: torch.Tensor,
        gating_output: torch.Tensor,
        correction_bias: torch.Tensor,
        topk: int,
        renormalize: bool,
        num_expert_group: int | None = None,
        topk_group: int | None = None,
        num_fused_shared_experts: int = 0,
        routed_scaling_factor: float | None = None,
        apply_routed_scaling_factor_on_output: bool | None = False,
    ) -> Any:
        if (
            num_expert_group != topk_group
            or num_fused_shared_experts
            or apply_routed_scaling_factor_on_output
        ):
            return original(
                hidden_states,
                gating_output,
                correction_bias,
                topk,
                renormalize,
                num_expert_group,
                topk_group,
                num_fused_shared_experts,
                routed_scaling_factor,
                apply_routed_scaling_factor_on_output,
            )
        scores = gating_output.sigmoid()
        ids = (scores + correction_bias).topk(topk, dim=-1, sorted=False).indices
        weights = scores.gather(1, ids)
        if renormalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights.float(), ids.int()

    return choose
