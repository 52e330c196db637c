"""Partial rotary embedding by half-rotation (mimo-v2.md section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


class _Turn(torch.autograd.Function):
    """Half-rotation of the first dimensions of a copy; backwards it turns the other way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, -sin), None, None


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    a, b = x[..., :half].float(), x[..., half : 2 * half].float()
    out = x.clone(memory_format=torch.contiguous_format)
    out[..., :half] = a * cos - b * sin
    out[..., half : 2 * half] = b * cos + a * sin
    return out


@dataclass(frozen=True)
class Rotary:
    """``cos`` and ``sin`` [T, 1, R/2] float32 of the first R dimensions of every head."""

    cos: torch.Tensor
    sin: torch.Tensor

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate ``x`` [B, T, heads, D] in float32; dimensions from R on stay as they are."""
        turned: torch.Tensor = _Turn.apply(x, self.cos, self.sin)
        return turned


def rotary(length: int, dim: int, theta: float) -> Rotary:
    """Angles of positions 0..length-1: pair i turns by position * theta^(-2i/dim)."""
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.arange(length, dtype=torch.float32)[:, None, None] * frequency
    return Rotary(angles.cos(), angles.sin())
