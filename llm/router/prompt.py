"""A prompt as the router sees it: chained block digests instead of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """Blocks of a prompt from its start.

    `blocks[i]` is a 64-bit digest of everything up to the end of block i (so equal digests mean
    equal prefixes, media included), `ends[i]` the tokens up to there, `tokens` the whole prompt's.
    What follows the last whole block belongs to no block: `ends[-1] <= tokens`.
    """

    blocks: Sequence[int]
    ends: Sequence[int]
    tokens: int

    def __post_init__(self) -> None:
        if len(self.blocks) != len(self.ends):
            raise ValueError(f"{len(self.blocks)} blocks have {len(self.ends)} ends")
        if self.ends and self.ends[-1] > self.tokens:
            raise ValueError(f"blocks end at {self.ends[-1]} of {self.tokens} tokens")

    @classmethod
    def uniform(cls, blocks: Sequence[int], block_tokens: int, tokens: int) -> Prompt:
        """Blocks of one size, the last one possibly shorter (as in public traces)."""
        ends = [min(tokens, (i + 1) * block_tokens) for i in range(len(blocks))]
        return cls(blocks, ends, tokens)

    def depth(self, tokens: int) -> int:
        """How many blocks end at or before `tokens`."""
        low, high = 0, len(self.ends)
        while low < high:
            middle = (low + high) // 2
            if self.ends[middle] <= tokens:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass(frozen=True, slots=True)
class Route:
    """A chat on its way: its prompt, and an id under which its load is counted."""

    id: str
    prompt: Prompt
