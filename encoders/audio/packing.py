"""Segments of different lengths laid end to end in one tensor [sum of lengths, width].

Nothing is ever padded: convolutions and pooling gather the rows of their own segment, and a row
of zeros where they reach over its edge. What a segment gives therefore cannot depend on the
segments it is packed with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F


def window_index(
    lengths: Sequence[int],
    outputs: Sequence[int],
    *,
    kernel: int,
    stride: int,
    before: int,
    device: torch.device,
) -> torch.Tensor:
    """Rows under each output's kernel, [sum(outputs), kernel] int64, into the packed rows.

    Output j of a segment covers its rows j * stride - before ... + kernel - 1; rows outside the
    segment point at index sum(lengths), where `PackedConv` keeps its row of zeros.
    """
    taps = torch.arange(kernel) - before
    parts, base, beyond = [], 0, sum(lengths)
    for length, count in zip(lengths, outputs, strict=True):
        rows = torch.arange(count)[:, None] * stride + taps
        inside = (rows >= 0) & (rows < length)
        parts.append(torch.where(inside, rows + base, beyond))
        base += length
    return torch.cat(parts).to(device)


def positions(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Position of each packed row in its own segment, [sum(lengths)] int64."""
    return torch.cat([torch.arange(length) for length in lengths]).to(device)


class PackedConv(nn.Conv1d):
    """A Conv1d over packed segments: same parameters, rows [n, in] and a window index instead."""

    def forward(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Output rows [index.shape[0], out_channels]."""
        with_zeros = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        windows = with_zeros[index].flatten(1)
        weight = self.weight.permute(0, 2, 1).flatten(1)
        return F.linear(windows, weight, self.bias)
