"""Attention that is told where to look: a loss in one layer; training only.

The rows of media know what is where, and which character or word, long before answers use it:
finding one row among hundreds is learnt slowly from the few tokens that depend on it. So at each
token of an answer that is about certain rows one head of each group is told to look at them.
So are the rows of a clip, which have to find what their place showed a pair of frames earlier.
``pointer_targets`` and ``pair_before`` say which rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tools.pocket.trunk.model import Layer
from tools.pocket.trunk.rotary import Rotary

LEAST = 1e-6


@dataclass(frozen=True)
class Pointer:
    """The token at ``position`` has to look at the rows at ``targets``, with this ``head`` or, if
    None, with the first one of each group."""

    position: int
    targets: tuple[int, ...]
    weight: float = 1.0
    head: int | None = None


def pointer_loss(
    layer: Layer, stream: torch.Tensor, angles: Rotary, pointers: Sequence[Sequence[Pointer]]
) -> torch.Tensor:
    """Weighted mean of -log of the share that a group's first head gives to the targets; 0 without
    pointers.

    ``stream`` [B, T, hidden] is what enters ``layer``, which sees everything; ``pointers`` are
    those of each row.
    """
    losses, weights = [], []
    chosen = [row for row, found in enumerate(pointers) if found]
    if not chosen:
        return stream.new_zeros(())
    attention = layer.attention
    q, k, _ = attention.project(layer.input_norm(stream[chosen]), angles)
    share = attention.heads // attention.groups
    for b, row in enumerate(chosen):
        for head, found in _by_head(pointers[row], range(0, attention.heads, share)).items():
            at = torch.tensor([pointer.position for pointer in found])
            wanted = torch.zeros(len(found), stream.shape[1], dtype=torch.bool)
            for i, pointer in enumerate(found):
                wanted[i, list(pointer.targets)] = True
            later = torch.arange(stream.shape[1]) > at[:, None]
            scores = (q[b, at, head] @ k[b, :, head // share].T).float()
            shares = scores.masked_fill(later, float("-inf")).softmax(-1)
            losses.append(-((shares * wanted).sum(-1) + LEAST).log())
            weights += [pointer.weight for pointer in found]
    weight = torch.tensor(weights)
    return (torch.cat(losses) * weight).sum() / weight.sum()


def _by_head(pointers: Sequence[Pointer], usual: Sequence[int]) -> dict[int, list[Pointer]]:
    """The pointers of each head; those of none in particular are of all ``usual`` ones."""
    found: dict[int, list[Pointer]] = {}
    for pointer in pointers:
        for head in usual if pointer.head is None else (pointer.head,):
            found.setdefault(head, []).append(pointer)
    return found
