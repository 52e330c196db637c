"""Partial rotary embedding by half-rotation (mimo-v2.md section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rotary:
    """``cos`` and ``sin`` [T, 1, R/2] float32 of the first R dimensions of every head."""

    cos: torch.Tensor
    sin: torch.Tensor

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate ``x`` [B, T, heads, D] in float32; dimensions from R on stay as they are."""
        half = self.cos.shape[-1]
        a, b = x[..., :half].float(), x[..., half : 2 * half].float()
        turned = [a * self.cos - b * self.sin, b * self.cos + a * self.sin]
        return torch.cat([*(part.to(x.dtype) for part in turned), x[..., 2 * half :]], dim=-1)


def rotary(length: int, dim: int, theta: float) -> Rotary:
    """Angles of positions 0..length-1: pair i turns by position * theta^(-2i/dim)."""
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.arange(length, dtype=torch.float32)[:, None, None] * frequency
    return Rotary(angles.cos(), angles.sin())
