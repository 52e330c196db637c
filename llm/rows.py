"""Parts of embedding rows: tensors, or references to a file that an engine process maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from encoders.embedding import RowsArray
from encoders.store import Lease

if TYPE_CHECKING:
    import torch

Run = tuple[int, int]
"""Consecutive rows: the first, and how many."""


@dataclass(frozen=True)
class SharedRows:
    """Runs of the rows in a file that this process holds open (`path`, see `Lease`).

    Good for as long as the lease: a request's own time.
    """

    path: str
    digest: str
    runs: tuple[Run, ...]

    def __len__(self) -> int:
        return sum(count for _, count in self.runs)


class LeasedRows:
    """The rows of one embedding under a lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __len__(self) -> int:
        return self._lease.head.rows

    def pick(self, runs: Sequence[Run]) -> SharedRows:
        return SharedRows(self._lease.shared_path, self._lease.head.digest, tuple(runs))


def opened(rows: RowsArray | Lease) -> torch.Tensor | LeasedRows:
    """Rows as a prompt takes them, without a copy."""
    return LeasedRows(rows) if isinstance(rows, Lease) else rows.tensor()


def pick(rows: torch.Tensor | LeasedRows, runs: Sequence[Run]) -> torch.Tensor | SharedRows:
    """The rows of `runs` in order; neighbouring runs are one, and one run is no copy."""
    merged: list[Run] = []
    for start, count in runs:
        if merged and sum(merged[-1]) == start:
            merged[-1] = (merged[-1][0], merged[-1][1] + count)
        else:
            merged.append((start, count))
    if isinstance(rows, LeasedRows):
        return rows.pick(merged)
    return gather(rows, merged)


def gather(rows: torch.Tensor, runs: Sequence[Run]) -> torch.Tensor:
    """The rows of `runs` in order; one run is a view."""
    parts = [rows[start : start + count] for start, count in runs]
    if len(parts) == 1:
        return parts[0]
    import torch

    return torch.cat(parts)
