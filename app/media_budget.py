"""The bytes of media that one gateway process holds, for all its requests together."""

from __future__ import annotations


class BudgetFull(Exception):
    """The requests in progress hold as much media as they may."""


class MediaBudget:
    """Counts bytes that are held. `limit`: None = counted only. Belongs to one event loop."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises `BudgetFull`, and counts nothing, above the limit."""
        if self._limit is not None and self.held + size > self._limit:
            raise BudgetFull
        self.held += size

    def keep(self, size: int) -> None:
        """Count bytes that are there already, whatever the limit."""
        self.held += size

    def give(self, size: int) -> None:
        """Bytes that were counted are gone."""
        self.held -= size
