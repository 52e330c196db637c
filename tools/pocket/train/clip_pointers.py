"""Where an answer about a clip has to look: targets for attention in the last layer; training only.

The rows know what happens and when long before answers use it (``clip_labels``): finding one row
among hundreds by colour, shape and event is learnt slowly from the few tokens that depend on it.
So at each token of an answer about an event one head of each group is told to look at its rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tools.pocket.data.sample import Message, text_of
from tools.pocket.train.example import Example
from tools.pocket.train.vision_data import MERGE, Labels
from tools.pocket.trunk.model import Layer
from tools.pocket.trunk.rotary import Rotary

STAMP = re.compile(r"\b(\d\d):(\d\d)\b")
LEAST = 1e-6


@dataclass(frozen=True)
class Pointer:
    """The token at ``position`` predicts a part of an answer about the rows at ``targets``."""

    position: int
    targets: tuple[int, ...]


def pointers(
    example: Example,
    conversation: Sequence[Message],
    labels: Labels,
    decode: Callable[[list[int]], str],
) -> list[Pointer]:
    """Those of an example about one clip, whose vision rows have these labels."""
    of_row = labels.second.view(-1, MERGE**2).amax(dim=1).tolist()
    rows: dict[int, list[int]] = {}
    for position, second in zip(example.vision, of_row, strict=True):
        if second >= 0:
            rows.setdefault(second, []).append(position)
    found = []
    asked = zip(conversation[::2], conversation[1::2], example.turns, strict=True)
    for question, answer, (first, stop) in asked:
        seconds = _seconds(text_of(question), str(answer["content"]), sorted(rows))
        line = 0
        for position in range(first, stop):
            second = seconds[min(line, len(seconds) - 1)] if seconds else None
            if second in rows:
                found.append(Pointer(position - 1, tuple(rows[second])))
            line += decode([example.ids[position]]).count("\n")
    return found


def _seconds(question: str, answer: str, known: Sequence[int]) -> list[int]:
    """The second that each line of an answer is about; empty for another kind of question."""
    stamps = [60 * int(m) + int(s) for m, s in STAMP.findall(answer) or STAMP.findall(question)]
    if stamps:
        return stamps
    if known and question.startswith("What happens first"):
        return [known[0]]
    if known and question.startswith("What happens last"):
        return [known[-1]]
    return []


def pointer_loss(
    layer: Layer, stream: torch.Tensor, angles: Rotary, examples: Sequence[Example]
) -> torch.Tensor:
    """Mean of -log of the share that the first head of each group gives to the targets; 0 without
    pointers.

    ``stream`` [B, T, hidden] is what enters ``layer``, which sees everything.
    """
    losses = []
    chosen = [row for row, example in enumerate(examples) if example.pointers]
    if not chosen:
        return stream.new_zeros(())
    attention = layer.attention
    q, k, _ = attention.project(layer.input_norm(stream[chosen]), angles)
    share = attention.heads // attention.groups
    for b, row in enumerate(chosen):
        found = examples[row].pointers
        at = torch.tensor([pointer.position for pointer in found])
        wanted = torch.zeros(len(found), stream.shape[1], dtype=torch.bool)
        for i, pointer in enumerate(found):
            wanted[i, list(pointer.targets)] = True
        later = torch.arange(stream.shape[1]) > at[:, None]
        for group in range(attention.groups):
            scores = (q[b, at, group * share] @ k[b, :, group].T).float()
            shares = scores.masked_fill(later, float("-inf")).softmax(-1)
            losses.append(-((shares * wanted).sum(-1) + LEAST).log())
    return torch.cat(losses).mean()
