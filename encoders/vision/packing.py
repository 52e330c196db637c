"""Several images and frames of different sizes as one sequence of patches.

A segment (one temporal slice of one item) is a run of patches that attends within itself. All
segments of a batch lie behind each other; nothing is padded to the largest. A `Packing` holds what
every block of the tower needs about that sequence, computed once per forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Rotary:
    """cos and sin [N, 1, head_dim/2] float32 of every patch's angles."""

    cos: torch.Tensor
    sin: torch.Tensor

    def take(self, order: torch.Tensor) -> Rotary:
        return Rotary(self.cos[order], self.sin[order])


@dataclass(frozen=True)
class Packing:
    """A packed batch of N patches.

    `lengths`: patches per segment. `columns`, `rows`: [N] int64, the patch order that walks merged
    tokens column by column inside each segment, and its inverse. `row_rotary`, `column_rotary`:
    angles in either order. `window_mask`: bool [blocks, block, block + 2*window], True where a
    query of the block may look (same segment, distance at most the window; padding behind the
    sequence sees itself); it holds for both orders, because segments do not move. `first`: bool
    [N], the first patch of each segment.
    """

    lengths: tuple[int, ...]
    columns: torch.Tensor
    rows: torch.Tensor
    row_rotary: Rotary
    column_rotary: Rotary
    window_mask: torch.Tensor
    first: torch.Tensor


def pack(
    grids: Sequence[Grid],
    *,
    merge: int,
    head_dim: int,
    window: int,
    block: int,
    device: torch.device | str,
) -> Packing:
    """The packing of items with these grids (t, h, w) in patches, each with t segments of h*w."""
    lengths = tuple(h * w for t, h, w in grids for _ in range(t))
    positions, columns, start = [], [], 0
    for t, h, w in grids:
        slice_positions, slice_columns = _slice_order(h, w, merge)
        for _ in range(t):
            positions.append(slice_positions)
            columns.append(slice_columns + start)
            start += h * w
    column_order = torch.cat(columns)
    rotary = _rotary(torch.cat(positions), head_dim)
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    first = F.pad(segment.diff() != 0, (1, 0), value=True)
    column_rotary = rotary.take(column_order)
    return Packing(
        lengths=lengths,
        columns=column_order.to(device),
        rows=torch.argsort(column_order).to(device),
        row_rotary=Rotary(rotary.cos.to(device), rotary.sin.to(device)),
        column_rotary=Rotary(column_rotary.cos.to(device), column_rotary.sin.to(device)),
        window_mask=_window_mask(segment.to(device), window, block),
        first=first.to(device),
    )


@lru_cache(maxsize=256)
def _slice_order(height: int, width: int, merge: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, column) of each patch [h*w, 2] in block order, and the column order [h*w]."""
    rows, columns = height // merge, width // merge
    row = torch.arange(height).view(rows, 1, merge, 1).expand(rows, columns, merge, merge)
    column = torch.arange(width).view(1, columns, 1, merge).expand(rows, columns, merge, merge)
    tokens = torch.arange(rows * columns).view(rows, columns).t().reshape(-1, 1)
    order = tokens * merge**2 + torch.arange(merge**2)
    return torch.stack([row.reshape(-1), column.reshape(-1)], dim=1), order.reshape(-1)


def _rotary(positions: torch.Tensor, head_dim: int) -> Rotary:
    """Angles [row * f | column * f] with f_j = 10000^(-2j / (head_dim/2)), j < head_dim/4."""
    half = head_dim // 2
    frequency = 10000.0 ** (-torch.arange(0, half, 2, dtype=torch.float32) / half)
    table = torch.arange(int(positions.max()) + 1, dtype=torch.float32)[:, None] * frequency
    cos, sin = table.cos()[positions], table.sin()[positions]
    return Rotary(cos.flatten(1)[:, None], sin.flatten(1)[:, None])


def _window_mask(segment: torch.Tensor, window: int, block: int) -> torch.Tensor:
    count = segment.numel()
    blocks = -(-count // block)
    rest = blocks * block - count
    # Padding belongs to no segment: -1 for queries, -2 for keys.
    query = F.pad(segment, (0, rest), value=-1).view(blocks, block, 1)
    keys = F.pad(segment, (window, rest + window), value=-2)
    keys = keys.unfold(0, block + 2 * window, block).unsqueeze(1)
    offset = torch.arange(block + 2 * window, device=segment.device) - window
    distance = (torch.arange(block, device=segment.device)[:, None] - offset).abs()
    # A row without any key would be NaN, and so would gradients through it.
    return (query == keys) & (distance <= window) | (query < 0) & (distance == 0)
