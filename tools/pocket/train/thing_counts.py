"""How many things of a kind a picture has shown up to each; training only.

A question how many there are comes after the picture, and attention finds things but does not add
them up. So the rows of each thing are told its number among those of its colour, of its shape, and
among all, and the answer looks at the last one that counts.
"""

from __future__ import annotations

import re
from collections import Counter

from tools.pocket.data.words import COLOURS, SHAPES
from tools.pocket.train.mentioned import mentioned
from tools.pocket.train.pointers import Pointer
from tools.pocket.train.shown import Shown

MOST = 6  # things that are told apart by their number; the last stands for all after
MORE = "Which image has more"
HEADS = (1, 5)  # that look for the same colour, and for the same shape
NONE = 0  # position that stands for no thing
FIRST = 0.1  # weight of the pointer of a row whose thing is the first of its kind
COUNTING = re.compile(rf"How many .*are there|Count the objects|{MORE}")


def thing_labels(about: Shown) -> list[tuple[int, tuple[int, ...]]]:
    """(position, number among those of its colour, of its shape, and among all) of the things'
    rows; a row of two things has the later one's."""
    seen: Counter[str] = Counter()
    labels: dict[int, tuple[int, ...]] = {}
    for thing in about.things:
        kinds = (thing.colour, thing.shape, "")
        labels |= dict.fromkeys(thing.rows, tuple(min(seen[k], MOST - 1) for k in kinds))
        seen.update(kinds)
    return sorted(labels.items())


def pointers_to_same(about: Shown) -> list[Pointer]:
    """From each row of a thing to the last thing before it of the same colour, and to that of the
    same shape; where it sees none to the first token, which says nothing. One of `HEADS` each."""
    found = []
    last: dict[str, tuple[int, ...]] = {}
    for thing in about.things:
        for head, kind in zip(HEADS, (thing.colour, thing.shape), strict=True):
            for row in thing.rows:
                targets = tuple(other for other in last.get(kind, ()) if other < row)
                weight = 1.0 if targets else FIRST
                found.append(Pointer(row, targets or (NONE,), weight, head))
            last[kind] = thing.rows
    return found


def last_counted(question: str, about: Shown) -> tuple[int, ...]:
    """The rows of the last thing that the question counts; none where there is none."""
    asked = mentioned(question)
    colours, shapes = asked["colour"] or COLOURS, asked["shape"] or SHAPES
    counted = [t.rows for t in about.things if t.colour in colours and t.shape in shapes]
    return counted[-1] if counted else ()
