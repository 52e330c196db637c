"""Rotation and mirror from a display matrix (case 37)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Orientation:
    """One of the eight ways to put a stored frame upright: transpose first, then flip."""

    transpose: bool = False
    flip_horizontal: bool = False
    flip_vertical: bool = False

    def size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) after the turn of a frame stored as (height, width), and back again."""
        return (width, height) if self.transpose else (height, width)

    def apply(self, frame: np.ndarray) -> np.ndarray:
        """[H, W, 3] as stored -> upright view, H and W swapped when transposed."""
        if self.transpose:
            frame = frame.swapaxes(0, 1)
        if self.flip_vertical:
            frame = frame[::-1]
        if self.flip_horizontal:
            frame = frame[:, ::-1]
        return frame


def from_matrix(matrix: Sequence[int]) -> Orientation:
    """The orientation nearest to a 3 x 3 display matrix, nine integers in file order.

    The matrix maps a stored pixel (x, y) to (a x + c y, b x + d y) with a, b = m[0], m[1] and
    c, d = m[3], m[4] (ISO 14496-12, 8.3.2: 16.16 fixed point; only signs and sizes matter here).
    Angles that are no multiple of 90 degrees go to the nearest one; a zero matrix is upright.
    """
    a, b, c, d = matrix[0], matrix[1], matrix[3], matrix[4]
    if abs(b) + abs(c) > abs(a) + abs(d):
        return Orientation(transpose=True, flip_horizontal=c < 0, flip_vertical=b < 0)
    return Orientation(flip_horizontal=a < 0, flip_vertical=d < 0)
