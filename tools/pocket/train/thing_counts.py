"""How many things of a kind a picture has shown up to each; training only.

A question how many there are comes after the picture, and attention finds things but does not add
them up. So the rows of each thing are told its number among those of its colour, of its shape, and
among all, and the answer looks at the last one that counts.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tools.pocket.data.sample import Picture
from tools.pocket.data.words import COLOURS, SHAPES
from tools.pocket.train.mentioned import mentioned
from tools.pocket.train.shown import Shown
from tools.pocket.train.vision_data import MERGE, block_order

MOST = 6  # things that are told apart by their number; the last stands for all after
COUNTING = re.compile(r"How many .*are there|Count the objects|Which image has more")


@dataclass(frozen=True)
class Thing:
    """Colour and shape as words, and the positions of its rows."""

    colour: str
    shape: str
    rows: tuple[int, ...]


def things(about: Shown) -> list[Thing]:
    """The things of a scene in the order in which they are complete: by their last rows."""
    assert isinstance(about.medium, Picture)
    _, rows, columns = about.prepared.items[0].grid
    facts = about.medium.facts
    owners = block_order(facts.owners(rows, columns)).reshape(-1, MERGE**2)
    found = []
    for number, (colour, shape, _) in enumerate(facts.attributes, start=1):
        held = (owners == number).any(axis=1).nonzero()[0]
        at = tuple(about.vision[row] for row in held)
        found.append(Thing(COLOURS[colour - 1], SHAPES[shape - 1], at))
    return sorted(found, key=lambda thing: max(thing.rows, default=-1))


def thing_labels(about: Shown) -> list[tuple[int, tuple[int, ...]]]:
    """(position, number among those of its colour, of its shape, and among all) of the things'
    rows; a row of two things has the later one's."""
    seen: Counter[str] = Counter()
    labels: dict[int, tuple[int, ...]] = {}
    for thing in things(about):
        kinds = (thing.colour, thing.shape, "")
        labels |= dict.fromkeys(thing.rows, tuple(min(seen[k], MOST - 1) for k in kinds))
        seen.update(kinds)
    return sorted(labels.items())


def last_counted(question: str, about: Shown) -> tuple[int, ...]:
    """The rows of the last thing that the question counts; none where there is none."""
    asked = mentioned(question)
    colours, shapes = asked["colour"] or COLOURS, asked["shape"] or SHAPES
    counted = [t.rows for t in things(about) if t.colour in colours and t.shape in shapes]
    return counted[-1] if counted else ()
