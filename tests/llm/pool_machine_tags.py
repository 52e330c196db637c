"""What every KV slot should hold: the exact token prefix that its position closes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

FREE = -1


class Prefixes:
    """Numbers for token prefixes; equal numbers mean equal prefixes, without collisions."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def of(self, tokens: Sequence[int]) -> np.ndarray:
        """The number of ``tokens[: i + 1]`` for every ``i``."""
        found = np.empty(len(tokens), dtype=np.int64)
        last = 0
        for position, token in enumerate(tokens):
            last = self._numbers.setdefault((last, token), len(self._numbers) + 1)
            found[position] = last
        return found


class Tags:
    """One tag a slot for the full and for the sliding-window pool of ``allocator``."""

    def __init__(self, allocator: Any, page: int) -> None:
        self.allocator, self.page = allocator, page
        self.prefixes = Prefixes()
        self.full = np.full(allocator.size_full + page, FREE, dtype=np.int64)
        self.swa = np.full(allocator.size_swa + page, FREE, dtype=np.int64)

    def window_slots(self, slots: np.ndarray) -> np.ndarray:
        """The sliding-window slot behind each full slot; 0 where there is none."""
        mapping: np.ndarray = self.allocator.full_to_swa_index_mapping.numpy()
        return mapping[slots]

    def compute(
        self, slots: np.ndarray, tokens: Sequence[int], start: int, end: int, window: int
    ) -> None:
        """A forward pass reads what is before ``start`` (in the window pool the last ``window``
        of it) and writes positions ``start`` to ``end``; ``slots`` is the whole row."""
        self.expect(slots[:start], tokens, window, "a step's input")
        numbers = self.prefixes.of(tokens[:end])[start:end]
        written = slots[start:end]
        window = self.window_slots(written)
        assert (written > 0).all(), "a position to compute has no full slot"
        assert (window > 0).all(), "a position to compute has no window slot"
        self.full[written] = numbers
        self.swa[window] = numbers

    def expect(self, slots: np.ndarray, tokens: Sequence[int], window: int, whose: str) -> None:
        """``slots`` must hold ``tokens``: all of them in the full pool, the last ``window`` in
        the other."""
        count = len(slots)
        numbers = self.prefixes.of(tokens[:count])
        assert (self.full[slots] == numbers).all(), f"{whose}: full slots of other tokens"
        low = max(0, count - window)
        behind = self.window_slots(slots[low:])
        assert (behind > 0).all(), f"{whose}: the window is not complete"
        assert (self.swa[behind] == numbers[low:]).all(), f"{whose}: window slots of other tokens"

    def forget(self, full_pages: np.ndarray, swa_pages: np.ndarray) -> None:
        """Free pages hold nothing, so that using one is seen before it is written again."""
        offsets = np.arange(self.page)
        self.full[(full_pages[:, None] * self.page + offsets).reshape(-1)] = FREE
        self.swa[(swa_pages[:, None] * self.page + offsets).reshape(-1)] = FREE
