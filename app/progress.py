"""How far the long clips of a request are, for a client that watches its reply.

Encodes are shared between requests, so they report to one board by digest; a request follows the
digests of its own items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson


@dataclass
class Board:
    """Parts done and parts in all, of every clip in work."""

    parts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def begin(self, digest: str, total: int) -> None:
        """A clip of `total` parts is begun."""
        self.parts[digest] = 0, total

    def step(self, digest: str) -> None:
        """One more part is done."""
        done, total = self.parts[digest]
        self.parts[digest] = done + 1, total

    def end(self, digest: str) -> None:
        """The clip is done, or given up."""
        self.parts.pop(digest, None)


class Progress:
    """What one request tells its client."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._places: dict[str, str] = {}
        self._told: dict[str, tuple[int, int]] = {}

    def follow(self, where: str, digest: str) -> None:
        """An item of the request is being encoded."""
        self._places[where] = digest

    @property
    def moving(self) -> bool:
        """Whether a long clip is in work of which something is done."""
        return any(done for _, (done, _) in self._states())

    def news(self) -> Iterator[bytes]:
        """One SSE comment for each clip that has moved since the last call."""
        for where, state in self._states():
            if self._told.get(where) != state:
                self._told[where] = state
                yield comment(where, *state)

    def again(self) -> Iterator[bytes]:
        """The last comment of each clip once more, so that the connection is seen to live."""
        for where, state in self._told.items():
            yield comment(where, *state)

    def _states(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for where, digest in self._places.items():
            state = self._board.parts.get(digest)
            if state is not None:
                yield where, state


def comment(where: str, done: int, total: int) -> bytes:
    """An SSE comment: clients of event streams skip lines that begin with a colon."""
    return b": progress %s\n\n" % orjson.dumps({"item": where, "done": done, "total": total})
