"""What a replica holds, in the router's terms: which blocks, and where a match may stop.

The replica notes the blocks of every chat with the tokens that each one ends at, and what its
engine says it holds of the sequence (`probe.py`); the ledger puts the two together.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm.router.blocks import Block
from llm.router.probe import SEQUENCES, Held

# A stop this far behind the end of a block belongs to it: the tokens that a template puts between
# two messages, and the few that two messages happen to start with in common.
SLACK = 16
COUNTS = 65_536


class TokenCounts:
    """Tokens of blocks, measured once each: `encode` gives the tokens of a text."""

    def __init__(self, encode: Callable[[str], int], most: int = COUNTS) -> None:
        self._encode = encode
        self._most = most
        self._counts: OrderedDict[int, int] = OrderedDict()

    def ends(self, blocks: Sequence[Block], total: int) -> list[int]:
        """The token that each block ends at, of a prompt of `total` tokens.

        What the template adds is spread over the ends of messages.
        """
        counts = [self.count(block) for block in blocks]
        closing = sum(block.closes for block in blocks)
        extra = max(0.0, (total - sum(counts)) / closing) if closing else 0.0
        ends, at = [], 0.0
        for block, count in zip(blocks, counts, strict=True):
            at += count + (extra if block.closes else 0.0)
            ends.append(min(total, math.floor(at)))
        return ends

    def count(self, block: Block) -> int:
        """Tokens of one block."""
        if block.text is None:
            return block.rows
        known = self._counts.get(block.digest)
        if known is None:
            known = self._encode(block.text.decode("utf-8", "ignore"))
            self._counts[block.digest] = known
            if len(self._counts) > self._most:
                self._counts.popitem(last=False)
        else:
            self._counts.move_to_end(block.digest)
        return known


@dataclass(slots=True)
class _Chat:
    blocks: list[int]
    ends: list[int]


class Ledger:
    """Blocks by chat; `tolerance`: tokens by which ends may be off (a KV page and rounding)."""

    def __init__(self, tolerance: int = 4, most: int = 2 * SEQUENCES) -> None:
        self._tolerance = tolerance
        self._most = most
        self._chats: OrderedDict[str, _Chat] = OrderedDict()
        self._blocks: dict[int, bool] = {}

    def note(self, chat: str, blocks: Iterable[int], ends: Iterable[int]) -> None:
        """A chat's blocks and the token that each one ends at; replaces what was noted of it."""
        noted = _Chat(list(blocks), list(ends))
        if len(noted.blocks) != len(noted.ends):
            raise ValueError(f"{len(noted.blocks)} blocks have {len(noted.ends)} ends")
        self._chats.pop(chat, None)
        self._chats[chat] = noted
        if len(self._chats) > self._most:
            self._chats.popitem(last=False)

    def extend(self, chat: str, blocks: Iterable[int], ends: Iterable[int]) -> None:
        """The chat went on: its answer. An unknown chat is no error."""
        noted = self._chats.get(chat)
        if noted is not None:
            noted.blocks.extend(blocks)
            noted.ends.extend(ends)

    def last(self, chat: str) -> tuple[int, int] | None:
        """Last block of a chat and the token it ends at; None when it is not known."""
        noted = self._chats.get(chat)
        return (noted.blocks[-1], noted.ends[-1]) if noted and noted.blocks else None

    def update(self, states: Mapping[str, Held], chat_of: Callable[[str], str] = str) -> None:
        """What the engine holds now, by sequence; `chat_of` names the chat of a sequence."""
        self._blocks = {}
        for sequence, held in states.items():
            chat = self._chats.get(chat_of(sequence))
            if chat is None:
                continue
            stops = self._stops(chat.ends, held.stops)
            for index, end in enumerate(chat.ends):
                if end > held.tokens + self._tolerance:
                    break
                block = chat.blocks[index]
                self._blocks[block] = self._blocks.get(block, False) or index in stops

    def _stops(self, ends: Sequence[int], stops: Iterable[int]) -> set[int]:
        """Indices of the blocks at whose end a match may stop."""
        found, index = set(), 0
        for stop in stops:
            while index < len(ends) and ends[index] + self._tolerance < stop:
                index += 1
            # The first block that reaches the stop, unless the one before ends just short of it.
            if index and stop - ends[index - 1] <= SLACK:
                found.add(index - 1)
            if index < len(ends) and (not index or stop - ends[index - 1] > SLACK):
                found.add(index)
        return found

    @property
    def blocks(self) -> Mapping[int, bool]:
        """Blocks that are held, parents first, and whether a match may stop at their end."""
        return self._blocks

    def check(self) -> None:
        """Raises AssertionError when the state is not consistent."""
        assert len(self._chats) <= self._most, "more chats than the bound"
        known = {block for chat in self._chats.values() for block in chat.blocks}
        for name, chat in self._chats.items():
            assert len(chat.blocks) == len(chat.ends), f"blocks and ends of {name}"
            assert chat.ends == sorted(chat.ends), f"ends of {name} do not ascend"
        assert not self._blocks or known, "blocks of no chat"
