"""Rows of a clip look at what was there a pair of frames earlier, and know it."""

from __future__ import annotations

import numpy as np

from tests.tools.test_pocket_pointer_targets import clip, scene_facts
from tools.pocket.data.labels import IGNORE, Facts
from tools.pocket.data.words import COLOURS, SHAPES
from tools.pocket.train.media import Prepared
from tools.pocket.train.pair_before import STAYED, pointers_before, tracked
from tools.pocket.train.shown import Shown
from tools.pocket.train.vision_data import item_of

Placed = tuple[str, int]  # a colour and a shape, and the row
SMALL = 1


def film(*frames: tuple[Placed, ...]) -> Shown:
    """A silent clip of 3 x 3 rows with these things in its frames, at positions with gaps."""
    black = np.zeros((2, 96, 96, 3), np.uint8)
    facts = [_facts(shown) for shown in frames]
    items = tuple(item_of(black, facts[i : i + 2]) for i in range(0, len(facts), 2))
    positions = [at(row) for row in range(9 * len(items))]
    return Shown(clip()[0], Prepared(items, None, ()), positions, [])


def _facts(shown: tuple[Placed, ...]) -> Facts:
    things = [name.split() for name, _ in shown]
    kinds = [(COLOURS.index(c) + 1, SHAPES.index(s) + 1, SMALL) for c, s in things]
    return scene_facts(kinds, [row for _, row in shown])


def at(row: int) -> int:
    return 7 + row + 5 * (row // 9)


def was(place: int, name: str) -> tuple[int, int, int]:
    colour, shape = name.split()
    return place, COLOURS.index(colour) + 1, SHAPES.index(shape) + 1


NONE = (0, 0, 0)
UNKNOWN = (IGNORE,) * 3


def test_rows_look_at_their_thing_or_their_place_one_pair_earlier() -> None:
    circle = ("red circle", 0)
    moved, star = ("red circle", 5), ("red star", 8)
    shown = film((circle,), (circle,), (moved,), (moved, star), *((moved, star),) * 2)
    found = {
        pointer.position: (pointer.targets, pointer.weight) for pointer in pointers_before(shown)
    }
    expected = {at(row): ((at(row - 9),), STAYED) for row in range(9, 27)}
    expected[at(9 + 5)] = ((at(0),), 1.0)
    assert found == expected


def test_rows_know_where_their_thing_is_and_what_was_there_before() -> None:
    circle, star = ("red circle", 0), ("blue star", 8)
    moved, turned = ("red circle", 5), ("green star", 8)
    shown = film((circle,), (circle,), (moved,), (moved, star), *((moved, turned),) * 2, (), ())
    assert tracked(shown) == [
        (at(0), (1, *UNKNOWN)),
        (at(9 + 0), (IGNORE, *was(1, "red circle"))),
        (at(9 + 5), (6, *was(1, "red circle"))),
        (at(9 + 8), (9, *NONE)),
        (at(18 + 5), (6, *was(6, "red circle"))),
        (at(18 + 8), (9, *was(9, "blue star"))),
        (at(27 + 5), (IGNORE, *was(6, "red circle"))),
        (at(27 + 8), (IGNORE, *was(9, "green star"))),
    ]


def test_of_a_thing_that_stays_one_row_is_told_and_of_one_that_moves_all() -> None:
    there, then = (("red circle", 3), ("red circle", 4)), (("red circle", 4), ("red circle", 5))
    shown = film(there, there, there, then)
    assert tracked(shown) == [
        (at(3), (4, *UNKNOWN)),
        (at(9 + 3), (IGNORE, *was(4, "red circle"))),
        (at(9 + 4), (6, *was(4, "red circle"))),
        (at(9 + 5), (6, *was(4, "red circle"))),
    ]
