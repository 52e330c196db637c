"""Rotary position embedding, half rotation (the first half pairs with the second)."""

from __future__ import annotations

import torch

Table = tuple[torch.Tensor, torch.Tensor]


def rotary_table(positions: torch.Tensor, dim: int, theta: float, dtype: torch.dtype) -> Table:
    """Cosines and sines [n, 1, dim] for positions [n]: angles in float32 at least, then cast."""
    exact = torch.promote_types(dtype, torch.float32)
    steps = torch.arange(0, dim, 2, device=positions.device, dtype=exact) / dim
    angles = positions.to(exact)[:, None] * theta**-steps
    both = torch.cat([angles, angles], dim=-1)[:, None]
    return both.cos().to(dtype), both.sin().to(dtype)


def rotate(x: torch.Tensor, table: Table) -> torch.Tensor:
    """Rotate the first `dim` of the last axis of x [..., n, heads, head_dim] by its position."""
    cos, sin = table
    dim = cos.shape[-1]
    turned, rest = x[..., :dim], x[..., dim:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
