"""Which characters of a printed line, or words of a sound, a row holds: targets for the stream
before the last layer; training only.

An answer spells a line out of rows that hold a few characters each: it has to know which of them
comes next. So a row is told the number of its first character, and its characters by their numbers
modulo SLOTS; a row of sound the number of its word, the word, and what is seen to happen meanwhile;
a row of what is seen after it was heard the word; a row of a thing how many of its kind there are
so far; a listed word of a text how often it has occurred so far. A token of an answer that tells
items in order knows the number of the next one. Early, after the layer in which rows of a clip look
one pair back, they know where their thing is, and where and what it was a pair before: from that
follows what happened; and rows of print the numbers of their first and last character, by which
they tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from tools.pocket.data.labels import CHARACTERS, IGNORE, SLOTS
from tools.pocket.data.sample import Picture, Sound
from tools.pocket.data.words import COLOURS, PLACES, SHAPES
from tools.pocket.train.audio_model import VOCABULARY
from tools.pocket.train.clip_labels import KINDS, NOUNS, noun_of
from tools.pocket.train.example import Example
from tools.pocket.train.objectives import first_weighs, told_loss
from tools.pocket.train.pair_before import tracked
from tools.pocket.train.pointer_targets import Numbers, characters, heard, shown_later
from tools.pocket.train.shown import Shown
from tools.pocket.train.text_targets import MOST
from tools.pocket.train.thing_counts import MOST as MOST_THINGS
from tools.pocket.train.thing_counts import thing_labels

NUMBERS = 8
# Classes of each label of a kind. Characters begin at 1: 0 is none.
SIZES: Mapping[str, tuple[int, ...]] = {
    "printed": (NUMBERS, *(SLOTS * (len(CHARACTERS) + 1,))),
    "spoken": (NUMBERS, len(VOCABULARY), KINDS, *NOUNS),
    "seen": (len(VOCABULARY),),
    "counted": (MOST + 1,),
    "copied": (MOST, MOST),
    "things": (MOST_THINGS,) * 3,
    "told": (NUMBERS, SLOTS),
    "tracked": (len(PLACES) + 1, len(PLACES) + 1, len(COLOURS) + 1, len(SHAPES) + 1),
    "numbered": (NUMBERS, NUMBERS),
}
EARLY = ("tracked", "numbered")
# Weights of class 0 by part, where most rows have it: the first of a kind, the first time.
USUAL: Mapping[str, tuple[float, ...]] = {"copied": (0.15, 0.15), "things": (0.15, 0.15, 1.0)}
LATE = tuple(kind for kind in SIZES if kind not in EARLY)
RowLabels = dict[str, list[tuple[int, tuple[int, ...]]]]
Held = list[tuple[int, list[int]]]


def row_labels(shown: Sequence[Shown]) -> RowLabels:
    """(position, classes) of the rows of media that hold print or words, by kind."""
    kinds = ("printed", "numbered", "spoken", "seen", "things", "tracked")
    found: RowLabels = {kind: [] for kind in kinds}
    for about in shown:
        medium = about.medium
        if isinstance(medium, Picture):
            held = _held(about)
            found["numbered"] += [(row, _ends(numbers)) for row, numbers in held]
            found["printed"] += _printed(medium, held)
            found["things"] += thing_labels(about)
        elif isinstance(medium, Sound):
            found["spoken"] += _spoken(medium, about)
        else:
            found["tracked"] += tracked(about)
            if medium.sound is not None:
                found["spoken"] += _spoken(medium.sound, about)
                found["seen"] += _seen(medium.sound, about)
    return found


def told_labels(numbers: Numbers) -> list[tuple[int, tuple[int, ...]]]:
    """(position, classes) of the tokens of answers, from the numbers of what comes next."""
    return [(at, (min(number, NUMBERS - 1), number % SLOTS)) for at, number in numbers]


def _held(about: Shown) -> Held:
    """The rows that hold print, with the numbers of their characters."""
    assert isinstance(about.medium, Picture)
    held: dict[int, list[int]] = {}
    for span in characters(about.medium.facts, about):
        for row in span.rows:
            held.setdefault(row, []).append(span.start)
    return sorted(held.items())


def _ends(numbers: list[int]) -> tuple[int, int]:
    return min(numbers[0], NUMBERS - 1), min(numbers[-1], NUMBERS - 1)


def _printed(picture: Picture, held: Held) -> list[tuple[int, tuple[int, ...]]]:
    classes = [CHARACTERS.index(box.character.upper()) + 1 for box in picture.facts.boxes]
    return [
        (
            row,
            (
                min(numbers[0], NUMBERS - 1),
                *(next((classes[i] for i in numbers if i % SLOTS == s), 0) for s in range(SLOTS)),
            ),
        )
        for row, numbers in held
    ]


def _spoken(sound: Sound, about: Shown) -> list[tuple[int, tuple[int, ...]]]:
    """From the middle of a word on: before, nobody can know it."""
    found: list[tuple[int, tuple[int, ...]]] = []
    told = zip(sound.words, about.meanwhile, strict=True)
    for number, ((start, stop, word), event) in enumerate(told):
        if word not in VOCABULARY:
            continue
        known = (IGNORE,) * (1 + len(NOUNS))
        if event and not event.later:
            known = (event.happening.kind, *noun_of(event.happening))
        classes = (min(number, NUMBERS - 1), VOCABULARY.index(word), *known)
        found += [(row, classes) for row in heard(about.audio, (start + stop) / 2, stop)]
    return found


def _seen(sound: Sound, about: Shown) -> list[tuple[int, tuple[int, ...]]]:
    return [
        (row, (VOCABULARY.index(word),))
        for (*_, word), rows in zip(sound.words, shown_later(about), strict=True)
        if word in VOCABULARY
        for row in rows
    ]


class RowHead(nn.Module):
    """Names the labels of some ``kinds`` of rows from their stream."""

    def __init__(self, hidden: int, kinds: Sequence[str] = LATE) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.heads = nn.ModuleDict({k: nn.Linear(hidden, sum(SIZES[k])) for k in kinds})

    def loss(self, stream: torch.Tensor, examples: Sequence[Example]) -> torch.Tensor:
        """Sum over kinds of weighted mean cross-entropies of labels; ``stream`` [B, T, hidden]."""
        total = stream.new_zeros(())
        for kind, head in self.heads.items():
            labels = [
                (row, at, classes)
                for row, example in enumerate(examples)
                for at, classes in example.row_labels.get(kind, ())
            ]
            if not labels:
                continue
            rows, places = ([label[i] for label in labels] for i in (0, 1))
            wanted = torch.tensor([classes for *_, classes in labels])
            logits = head(self.norm(stream[rows, places])).float().split(SIZES[kind], dim=-1)
            usual = USUAL.get(kind, (1.0,) * len(logits))
            for part, classes, weight in zip(logits, wanted.unbind(1), usual, strict=True):
                total = total + told_loss(part, classes, first_weighs(weight, part))
        return total
