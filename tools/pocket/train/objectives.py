"""What a trunk is trained to predict, and how often it was right."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from tools.pocket.data.labels import IGNORE
from tools.pocket.train.batches import Batch
from tools.pocket.trunk.model import Trunk

PREVIOUS = 3  # tokens back that the auxiliary heads name
PREVIOUS_ROWS = 1024  # positions of a batch they are trained at


def told_loss(
    logits: torch.Tensor, wanted: torch.Tensor, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Mean cross-entropy of ``logits`` [n, classes] over those of ``wanted`` [n] that are labels; 0
    where none is, as of the characters of a clip: the mean would be NaN."""
    if (wanted == IGNORE).all():
        return logits.new_zeros(())
    return F.cross_entropy(logits, wanted, weight, ignore_index=IGNORE)


def first_weighs(weight: float, logits: torch.Tensor) -> torch.Tensor:
    """Weights of the classes of ``logits`` [n, classes]: ``weight`` of class 0, 1 of the others."""
    weights = logits.new_ones(logits.shape[1])
    weights[0] = weight
    return weights


class PreviousHeads(nn.Module):
    """Name the tokens at p-1, p-2 and p-3 from the stream after layer index 1; training only.

    They make the early window layers carry the neighbouring tokens forward, which every lookup
    needs; without them recall stays on a plateau for millions of tokens.
    """

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.heads = nn.Linear(hidden, PREVIOUS * vocabulary, bias=False)
        nn.init.normal_(self.heads.weight, std=0.02)

    def loss(self, early: torch.Tensor, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """Mean cross-entropy at up to PREVIOUS_ROWS random positions from 3 on."""
        places = batch.valid.clone()
        places[:, :PREVIOUS] = False
        row, column = places.nonzero(as_tuple=True)
        pick = torch.randperm(row.numel(), generator=generator)[:PREVIOUS_ROWS]
        row, column = row[pick], column[pick]
        logits = self.heads(early[row, column]).unflatten(-1, (PREVIOUS, -1))
        back = torch.arange(1, PREVIOUS + 1)
        targets = batch.ids[row[:, None], column[:, None] - back]
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@dataclass
class Tally:
    """Right and total, of supervised tokens and of whole turns, by skill."""

    tokens: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    turns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def add(self, batch: Batch, right: torch.Tensor) -> None:
        """``right`` [B, T] bool: token predicted, anything where it was not supervised."""
        for row, example in enumerate(batch.examples):
            hits = right[row].tolist()
            tokens, turns = self.tokens[example.skill], self.turns[example.skill]
            for first, stop in example.turns:
                correct = sum(hits[first:stop])
                tokens[0] += correct
                tokens[1] += stop - first
                turns[0] += correct == stop - first
                turns[1] += 1

    def accuracy(self, of: str = "turns") -> dict[str, float]:
        table = self.turns if of == "turns" else self.tokens
        return {skill: right / total for skill, (right, total) in table.items() if total}


def answer_loss(
    trunk: Trunk, hidden: torch.Tensor, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy of the supervised tokens, and which tokens [B, T] were predicted.

    ``hidden`` [B, T, h] is the trunk's normalised output.
    """
    wanted = batch.supervised[:, 1:]
    logits = trunk.head(hidden[:, :-1][wanted]).float()
    targets = batch.ids[:, 1:][wanted]
    right = torch.zeros_like(batch.supervised)
    right[:, 1:][wanted] = logits.detach().argmax(-1) == targets
    return F.cross_entropy(logits, targets), right
