"""The one size rule: what a picture is resized to, and how many rows that makes.

Placeholder counts, tensors and capacity planning all come from here, so they cannot disagree.
"""

from __future__ import annotations

import math

from encoders.errors import MediaError

MAX_ASPECT = 200


def smart_resize(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width) after the resize: multiples of `factor`, area within the pixel limits.

    The family's rule (mimo-v2.md 4.1, SGLang 0.5.23): a side shorter than `factor` is first scaled
    up to it together with the other; otherwise an aspect ratio above 200 raises `MediaError`.
    Rounding is Python's (half to even). Where the original ends with an empty side (a very long
    picture under a small limit), the short side becomes `factor` and the long one what the limit
    leaves.
    """
    if height < 1 or width < 1:
        raise MediaError(f"the picture is empty ({width} x {height})")
    short, long = sorted((height, width))
    if short < factor:
        scale = factor / short
        height, width = round(height * scale), round(width * scale)
    elif long / short > MAX_ASPECT:
        raise MediaError(
            f"the picture is too narrow: {width} x {height} exceeds the aspect ratio {MAX_ASPECT}"
        )
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = math.floor(height / shrink / factor) * factor
        new_width = math.floor(width / shrink / factor) * factor
        if not new_height or not new_width:
            rest = max(max_pixels // factor // factor, 1) * factor
            return (factor, rest) if new_height < new_width else (rest, factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def grid_tokens(grid: tuple[int, int, int], merge: int) -> int:
    """Embedding rows of a grid (t, h, w) in patches."""
    t, h, w = grid
    return t * h * w // (merge * merge)
