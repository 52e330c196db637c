"""Rows of similar length put together, drawn from several skills by weight.

Everything is a function of a seed and two counters, so a run that is resumed goes on with the
data it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from tools.pocket.train.example import Example

POOL = 192
MAX_ROWS = 48


@dataclass(frozen=True)
class Batch:
    """``ids`` [B, T] int64, ``valid`` and ``supervised`` [B, T] bool, and the rows' examples."""

    ids: torch.Tensor
    valid: torch.Tensor
    supervised: torch.Tensor
    examples: list[Example]

    @property
    def tokens(self) -> int:
        return int(self.valid.sum())


def collate(examples: list[Example], multiple: int) -> Batch:
    """Pad rows at the end to a common length, a multiple of ``multiple``."""
    longest = max(len(e) for e in examples)
    length = -(-longest // multiple) * multiple
    ids = torch.zeros(len(examples), length, dtype=torch.int64)
    valid = torch.zeros(len(examples), length, dtype=torch.bool)
    supervised = torch.zeros(len(examples), length, dtype=torch.bool)
    for row, example in enumerate(examples):
        ids[row, : len(example)] = torch.tensor(example.ids)
        valid[row, : len(example)] = True
        supervised[row, : len(example)] = torch.tensor(example.supervised)
    return Batch(ids, valid, supervised, examples)


def split(examples: list[Example], budget: int, multiple: int) -> list[list[Example]]:
    """Groups of neighbours in length whose padded size stays within ``budget`` tokens."""
    groups: list[list[Example]] = []
    for example in sorted(examples, key=len):
        length = -(-len(example) // multiple) * multiple
        full = not groups or (len(groups[-1]) + 1) * length > budget
        if full or len(groups[-1]) >= MAX_ROWS:
            groups.append([])
        groups[-1].append(example)
    return groups


@dataclass
class Mixer:
    """Endless batches. ``make(skill, index)`` gives item ``index`` of a skill.

    ``weights`` (items per skill) and what ``make`` does may change between pools.
    """

    make: Callable[[str, int], Example]
    weights: Mapping[str, float]
    seed: int
    budget: int
    multiple: int
    pool: int = 0
    place: int = 0
    rank: int = 0  # of ``ranks`` mixers that draw different data
    ranks: int = 1

    def batches(self) -> Iterator[Batch]:
        while True:
            groups = self._pool()
            while self.place < len(groups):
                group = groups[self.place]
                self.place += 1
                yield collate(group, self.multiple)
            self.pool, self.place = self.pool + 1, 0

    def _pool(self) -> list[list[Example]]:
        number = self.pool * self.ranks + self.rank
        rng = random.Random(f"{self.seed}/{number}")
        skills = rng.choices(list(self.weights), list(self.weights.values()), k=POOL)
        first = number * POOL
        examples = [self.make(skill, first + i) for i, skill in enumerate(skills)]
        groups = split(examples, self.budget, self.multiple)
        rng.shuffle(groups)
        return groups
