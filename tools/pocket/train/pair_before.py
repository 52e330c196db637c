"""What a row of a clip's frames showed one pair of frames earlier, and where to look for it;
training only.

What happens in a clip follows from two pairs. Most rows show what they showed before, and of those
a few labels are enough: the rest would outweigh the rows at which something happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tools.pocket.data.labels import IGNORE
from tools.pocket.train.pointers import Pointer
from tools.pocket.train.shown import Shown
from tools.pocket.train.vision_data import MERGE

STAYED = 0.05  # weight of the pointer of a row whose thing, if any, stayed


class Thing(NamedTuple):
    """A thing in the later frame of a pair: its place from 1, colour and shape; all 0: none."""

    place: int
    colour: int
    shape: int


NOTHING = Thing(0, 0, 0)


def pointers_before(about: Shown) -> list[Pointer]:
    """From each row of a clip's frames but the first pair's to where its thing was in the last
    frame of the pair before; if it shows none or that did not, to its place's row."""
    rows = about.rows_of_pair
    shapes = about.labels.shape.view(-1, MERGE**2, 2).tolist()
    found = []
    for row in range(rows, len(about.vision)):
        mine = {shape for patch in shapes[row] for shape in patch if shape > 0}
        pair = range((row // rows - 1) * rows, row // rows * rows)
        there = [r for r in pair if mine & {shape for _, shape in shapes[r]}] or [row - rows]
        weight = STAYED if row - rows in there else 1.0
        found.append(Pointer(about.vision[row], tuple(about.vision[r] for r in there), weight))
    return found


def tracked(about: Shown) -> list[tuple[int, tuple[int, ...]]]:
    """(position, classes) of rows by their pair's later frame: the place of the one thing that the
    row shows there, and place, colour and shape of that in the pair before, `NOTHING` where it
    was not there. A row whose thing has left tells what it was. Of a thing that stays as it was
    one row is told."""
    pairs, rows = len(about.prepared.items), about.rows_of_pair
    shapes = about.labels.shape[:, 1].view(pairs, rows, -1).tolist()
    found: list[tuple[int, tuple[int, ...]]] = []
    before: Mapping[int, Thing] = {}
    for pair in range(pairs):
        there = _things(about, pair)
        told = set[int]()
        for row in range(rows):
            shown = set(shapes[pair][row]) - {0, IGNORE}
            gone = set(shapes[pair - 1][row]) - {0, IGNORE} if pair else set()
            if len(shown) == 1:
                (shape,) = shown
                now, was = there[shape].place, before.get(shape, NOTHING)
                if not pair or was == there[shape]:
                    if shape in told:
                        continue
                    told.add(shape)
            elif len(gone) == 1 and not shown:
                now, was = IGNORE, before[gone.pop()]
            else:
                continue
            classes = (now, *(was if pair else (IGNORE,) * len(was)))
            found.append((about.vision[pair * rows + row], classes))
        before = there
    return found


def _things(about: Shown, pair: int) -> dict[int, Thing]:
    """By their shapes, the things of a pair's later frame."""
    labels = about.prepared.items[pair].labels
    shapes = labels.shape[:, 1]
    found = {}
    for shape in set(shapes.tolist()) - {0, IGNORE}:
        mine = shapes == shape
        row, column = labels.thirds[mine].float().mean(dim=0).round().int().tolist()
        colour = int(labels.colour[mine, 1].mode().values)
        found[shape] = Thing(3 * row + column + 1, colour, shape)
    return found
