"""Which attributes of things a text names."""

from __future__ import annotations

import re

from tools.pocket.data.words import COLOURS, PLACES, SHAPES, SIZES

# The longest first: "top left" is neither "top" nor "left".
_PLACES = tuple(sorted(PLACES, key=len, reverse=True))
WORDS = {"colour": COLOURS, "shape": SHAPES, "size": SIZES, "place": _PLACES}
_KINDS = {kind: re.compile(rf"\b({'|'.join(words)})(?:s|es)?\b") for kind, words in WORDS.items()}


def mentioned(text: str) -> dict[str, set[str]]:
    """The words of each kind in ``text``, plurals as singulars."""
    return {kind: set(pattern.findall(text)) for kind, pattern in _KINDS.items()}
