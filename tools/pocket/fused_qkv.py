"""The stored form of fused query, key and value projections (mimo-v2.md section 8.3).

Rows are a stack of shards; shard ``s`` is ``[Q_s | K_s | V_s]`` with an equal, consecutive
share of the heads of each kind. A plain ``[Q | K | V]`` split has the same shape and is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class QkvRows:
    """Row counts of the three projections of one attention layer, and the number of shards."""

    q: int
    k: int
    v: int
    shards: int

    def __post_init__(self) -> None:
        if any(rows % self.shards for rows in (self.q, self.k, self.v)):
            raise ValueError(f"{self} does not divide into {self.shards} shards")

    @property
    def total(self) -> int:
        return self.q + self.k + self.v

    @property
    def per_shard(self) -> list[int]:
        return [rows // self.shards for rows in (self.q, self.k, self.v)]


def fuse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: QkvRows) -> torch.Tensor:
    """Stack ``q [rows.q, h]``, ``k [rows.k, h]``, ``v [rows.v, h]`` to ``[rows.total, h]``."""
    parts = zip(*(t.chunk(rows.shards) for t in (q, k, v)), strict=True)
    return torch.cat([part for shard in parts for part in shard])


def unfuse(fused: torch.Tensor, rows: QkvRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inverse of ``fuse``. Raises ``ValueError`` when the row count does not fit."""
    if fused.shape[0] != rows.total:
        raise ValueError(f"fused projection has {fused.shape[0]} rows, expected {rows.total}")
    shards = [shard.split(rows.per_shard) for shard in fused.chunk(rows.shards)]
    q, k, v = (torch.cat(parts) for parts in zip(*shards, strict=True))
    return q, k, v
