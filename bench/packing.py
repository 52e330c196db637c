"""Batches of images as different batchers cut them, and what padding would add to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from encoders.size_classes import SizeClasses, class_bounds
from encoders.vision.packing import Grid

# Images that wait while a batch is cut from them by size class: one of each of 16 clients.
BACKLOG = 16


class _Section(Protocol):
    """Settings or options of an image encoder."""

    @property
    def max_batch_items(self) -> int: ...

    @property
    def max_batch_patches(self) -> int: ...


@dataclass(frozen=True)
class Limits:
    """Most images and patches of a batch; a larger image goes alone."""

    items: int
    patches: int

    @classmethod
    def of(cls, section: _Section) -> Self:
        return cls(section.max_batch_items, section.max_batch_patches)


def size(grid: Grid) -> int:
    """Patches."""
    t, h, w = grid
    return t * h * w


def padding(batches: Sequence[Sequence[Grid]]) -> float:
    """Patches of the batches padded to the largest image of each, over those without padding."""
    padded = sum(len(batch) * max(map(size, batch)) for batch in batches)
    return padded / sum(size(grid) for batch in batches for grid in batch)


def cut(grids: Sequence[Grid], limits: Limits) -> list[list[Grid]]:
    """Batches in order of arrival, as full as the limits allow without padding."""
    batches: list[list[Grid]] = [[]]
    for grid in grids:
        full = sum(map(size, batches[-1])) + size(grid) > limits.patches
        if batches[-1] and (full or len(batches[-1]) == limits.items):
            batches.append([])
        batches[-1].append(grid)
    return batches


def cut_by_class(grids: Sequence[Grid], limits: Limits) -> list[list[Grid]]:
    """Batches as the encoder's batcher cuts them while `BACKLOG` images wait."""
    classes: SizeClasses[int] = SizeClasses(class_bounds(limits.patches))
    batches: list[list[Grid]] = []
    arrived = 0
    while arrived < len(grids) or len(classes):
        while arrived < len(grids) and len(classes) < BACKLOG:
            classes.push(arrived, size(grids[arrived]))
            arrived += 1
        batches.append([grids[i] for i in classes.take(limits.patches, limits.items)])
    return batches
