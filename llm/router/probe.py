"""What a prefix tree really holds of the sequences that an engine computed.

Nothing is inferred: for every sequence the engine inserted, the tree is asked which nodes of its
path still exist and which of them still have their KV, for both pools. The questions change nothing
in the tree (neither recency nor locks), and a few sequences are asked about in each round, so a
round is cheap however much is cached. Where a match may stop follows from the window rule: at the
end of a node before which the last window's SWA KV is held without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

SEQUENCES = 1024
ROUND = 64


@dataclass(frozen=True, slots=True)
class Node:
    """A node on a path: the tokens from `start` to `end`, and which KV of it is held."""

    id: int
    start: int
    end: int
    full: bool
    swa: bool


class Tree(Protocol):
    """What is asked of a prefix tree."""

    def path(self, node: int) -> Sequence[Node] | None:
        """The nodes from the root to `node`, or None when it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """Of a sequence: its first `tokens` are held, and a match may stop at `stops` (ascending)."""

    tokens: int
    stops: tuple[int, ...]


@dataclass(slots=True)
class _Sequence:
    """The ids of its path's nodes, deepest last: a split keeps the id of the deeper part."""

    path: list[int]
    held: Held = field(default_factory=lambda: Held(0, ()))


def held_of(path: Sequence[Node], window: int) -> Held:
    """`window`: tokens before a position whose SWA KV it needs; 0 = there are no SWA layers."""
    tokens, covered = 0, 0
    stops: list[int] = []
    for node in path:
        if not node.full:
            break
        tokens = node.end
        covered = covered + node.end - node.start if node.swa else 0
        if not window or covered >= min(window, node.end):
            stops.append(node.end)
    return Held(tokens, tuple(stops))


class PrefixProbe:
    """The sequences of one prefix tree; `most` of them are followed, the latest."""

    def __init__(self, window: int, most: int = SEQUENCES) -> None:
        self._window = window
        self._most = most
        self._sequences: dict[str, _Sequence] = {}
        self._new: dict[str, None] = {}
        self._ends: dict[int, str] = {}
        self._turn: list[str] = []

    def saw(self, sequence: str, node: int) -> None:
        """A sequence was inserted, or continued, up to `node`."""
        old = self._sequences.pop(sequence, None)
        if old is not None and self._ends.get(old.path[-1]) == sequence:
            del self._ends[old.path[-1]]
        self._sequences[sequence] = _Sequence([node])
        self._new[sequence] = None
        if len(self._sequences) > self._most:
            self._forget(next(iter(self._sequences)))

    def cleared(self) -> None:
        """The tree was emptied."""
        for sequence in list(self._sequences):
            self._forget(sequence)

    def refresh(self, tree: Tree, count: int = ROUND) -> None:
        """Ask about every sequence that is new and about `count` others, in turns."""
        if len(self._turn) < count:
            self._turn = list(self._sequences)
        turn, self._turn = self._turn[:count], self._turn[count:]
        asked = [*self._new, *(name for name in turn if name not in self._new)]
        self._new.clear()
        for sequence in asked:
            if sequence in self._sequences:
                self._ask(tree, sequence)

    def _ask(self, tree: Tree, sequence: str) -> None:
        state = self._sequences[sequence]
        if self._ends.get(state.path[-1]) == sequence:
            del self._ends[state.path[-1]]
        path = None
        while state.path and path is None:
            path = tree.path(state.path[-1])
            if path is None:
                state.path.pop()
        if not path:
            self._forget(sequence)
            return
        state.path = [node.id for node in path]
        state.held = held_of(path, self._window)
        for node in state.path:
            # A sequence that this one continues, or equals, has nothing to add.
            other = self._ends.get(node)
            if other is not None and other != sequence:
                self._forget(other)
        self._ends[state.path[-1]] = sequence

    def _forget(self, sequence: str) -> None:
        gone = self._sequences.pop(sequence)
        self._new.pop(sequence, None)
        if gone.path and self._ends.get(gone.path[-1]) == sequence:
            del self._ends[gone.path[-1]]

    def states(self) -> dict[str, Held]:
        """What is held of each sequence that is followed, as asked last."""
        return {name: state.held for name, state in self._sequences.items()}

    def check(self) -> None:
        """Raises AssertionError when the state is not consistent."""
        assert len(self._sequences) <= self._most, "more sequences than the bound"
        assert self._new.keys() <= self._sequences.keys(), "a forgotten sequence is new"
        for node, name in self._ends.items():
            assert self._sequences[name].path[-1] == node, f"{name} does not end at {node}"
        for name, state in self._sequences.items():
            assert state.path, f"{name} has no node"
            assert list(state.held.stops) == sorted(state.held.stops), f"stops of {name}"
            assert all(stop <= state.held.tokens for stop in state.held.stops), f"stop of {name}"
