"""Parts of embedding rows: tensors, or references to a file that an engine process maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from encoders.embedding import RowsArray
from encoders.store import Lease

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SharedRows:
    """`count` rows from `start` on in a file that this process holds open (`path`, see `Lease`).

    Good for as long as the lease: a request's own time.
    """

    path: str
    digest: str
    start: int
    count: int

    def __len__(self) -> int:
        return self.count


class LeasedRows:
    """The rows of one embedding under a lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __len__(self) -> int:
        return self._lease.head.rows

    def pick(self, start: int, count: int) -> SharedRows:
        return SharedRows(self._lease.shared_path, self._lease.head.digest, start, count)


def opened(rows: RowsArray | Lease) -> torch.Tensor | LeasedRows:
    """Rows as a prompt takes them, without a copy."""
    return LeasedRows(rows) if isinstance(rows, Lease) else rows.tensor()


def pick(rows: torch.Tensor | LeasedRows, start: int, count: int) -> torch.Tensor | SharedRows:
    """`count` rows from `start` on, without a copy."""
    if isinstance(rows, LeasedRows):
        return rows.pick(start, count)
    return rows[start : start + count]
