"""What each patch of a picture shows: targets for the vision tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.pocket.data.words import COLOURS

IGNORE = -1
COLUMNS = 4  # characters are labelled in four columns of each patch
CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"  # case-folded; class 0 is "none"
NUMBERS = 6  # the last one stands for all that follow
SLOTS = 4  # by which characters are told apart: their numbers modulo this
_MOVES = tuple(f"moves {way}" for way in ("left", "right", "up", "down"))
EVENTS = ("appears", "disappears", "turns", *_MOVES)
# An object is labelled where it covers this many of the 16 sample points of a patch.
_COVERED = 4


@dataclass(frozen=True)
class Happening:
    """At ``time`` seconds of a clip the thing of class ``shape`` (-1: the whole picture) does
    ``EVENTS[kind - 1]``. No two things of a clip have the same shape. It was of colour ``was``,
    if it ``becomes`` another of that (0: none)."""

    time: float
    kind: int
    shape: int
    was: int = 0
    becomes: int = 0

    @property
    def moves(self) -> bool:
        return EVENTS[self.kind - 1] in _MOVES

    @staticmethod
    def of(time: float, verb: str, shape: int, colour: str = "") -> Happening:
        """From a verb as it is told, "turns red", "moves left", and the colour of what does it."""
        turns, _, becomes = verb.partition("turns ")
        was, then = (COLOURS.index(name) + 1 if name else 0 for name in (colour, becomes))
        return Happening(time, EVENTS.index(turns or "turns") + 1, shape, was, then)


@dataclass(frozen=True)
class PatchLabels:
    """Classes [rows, columns] int64 of a picture's patches; 0 is background, -1 is no label.

    ``characters`` is [rows, columns, 4]: the character at each quarter of the patch's width;
    ``numbers`` which of its line it is, from 1.
    """

    colour: np.ndarray
    shape: np.ndarray
    size: np.ndarray
    characters: np.ndarray
    numbers: np.ndarray


@dataclass(frozen=True)
class CharacterBox:
    """A printed character, number ``number`` of its line from 0: ``left``..``right`` is its
    advance, ``top``..``bottom`` the band from the top of a capital to the baseline, in picture
    pixels."""

    character: str
    left: float
    right: float
    top: float
    bottom: float
    number: int = 0


@dataclass(frozen=True)
class Facts:
    """Everything that labels need: ``ids`` uint8 [H, W] holds 1 + the index of the object that a
    pixel shows (0 none), ``attributes`` the (colour, shape, size) classes of each object, from 1.
    """

    height: int
    width: int
    ids: np.ndarray | None = None
    attributes: Sequence[tuple[int, int, int]] = ()
    boxes: Sequence[CharacterBox] = ()

    def labels(self, rows: int, columns: int) -> PatchLabels:
        """Labels of the picture after its resize to ``rows`` x ``columns`` patches."""
        owner = self.owners(rows, columns)
        table = np.array([(0, 0, 0), *self.attributes, (IGNORE,) * 3], np.int64)
        colour, shape, size = (table[owner, k] for k in range(3))
        return PatchLabels(colour, shape, size, *self._print(rows, columns))

    def owners(self, rows: int, columns: int) -> np.ndarray:
        """1 + the index of the object that each patch shows [rows, columns]; 0 none, 1 more than
        there are objects: too little of one."""
        count = len(self.attributes)
        if self.ids is None or not count:
            return np.zeros((rows, columns), np.int64)
        y = ((np.arange(rows * 4) + 0.5) * self.height / (rows * 4)).astype(np.int64)
        x = ((np.arange(columns * 4) + 0.5) * self.width / (columns * 4)).astype(np.int64)
        points = self.ids[y[:, None], x[None, :]].reshape(rows, 4, columns, 4)
        hits = points.transpose(0, 2, 1, 3).reshape(rows, columns, 16)
        share = (hits[..., None] == np.arange(1, count + 1)).sum(axis=2)
        best = share.max(axis=-1)
        owner = np.where(best >= _COVERED, share.argmax(axis=-1) + 1, 0)
        owner[(best > 0) & (best < _COVERED)] = count + 1
        for k in range(count):
            if not (owner == k + 1).any() and share[..., k].any():
                owner[np.unravel_index(share[..., k].argmax(), owner.shape)] = k + 1
        return owner

    def _print(self, rows: int, columns: int) -> np.ndarray:
        """Characters and numbers [2, rows, columns, 4]."""
        found = np.zeros((2, rows, columns * COLUMNS), np.int64)
        tall, wide = rows * 16 / self.height, columns * 16 / self.width
        edges = np.arange(rows + 1) * 16.0
        step = 16.0 / COLUMNS
        for box in self.boxes:
            top, bottom = box.top * tall, box.bottom * tall
            overlap = np.minimum(edges[1:], bottom) - np.maximum(edges[:-1], top)
            whole = overlap >= 0.5 * min(bottom - top, 16.0)
            first = max(int(np.ceil(box.left * wide / step - 0.5)), 0)
            stop = int(np.ceil(box.right * wide / step - 0.5))
            span = slice(first, max(first, stop))
            classes = CHARACTERS.index(box.character.upper()) + 1, min(box.number + 1, NUMBERS)
            for labels, value in zip(found, classes, strict=True):
                labels[whole, span] = value
                labels[(overlap > 0) & ~whole, span] = IGNORE
        return found.reshape(2, rows, columns, COLUMNS)
