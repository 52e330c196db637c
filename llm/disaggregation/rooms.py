"""Handovers in progress on a prefill replica: each has a room, and a time until which it is held.

SGLang names a transfer by a *bootstrap room* at its prefill engine's address. A room is closed
exactly once, by whoever comes first: the answer, a failure of either side, the client leaving, or
its deadline. What completes later finds it closed and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from secrets import randbits
from typing import Any


@dataclass(frozen=True, slots=True)
class Handoff:
    """Where a decode engine finds the KV of a request."""

    host: str
    port: int
    room: int

    def fields(self) -> dict[str, Any]:
        """As SGLang's request classes name them."""
        return {
            "bootstrap_host": self.host,
            "bootstrap_port": self.port,
            "bootstrap_room": self.room,
        }


class Rooms:
    """Rooms of one prefill engine at `host`:`port`; each is held for `timeout_s` at most."""

    def __init__(
        self, host: str, port: int, timeout_s: float, draw: Callable[[int], int] = randbits
    ) -> None:
        self._host, self._port = host, port
        self._timeout_s = timeout_s
        self._draw = draw
        self._deadlines: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def open(self, now: float) -> Handoff:
        """A new room; `now` in seconds."""
        room = self._draw(62)
        while room in self._deadlines:
            room = self._draw(62)
        self._deadlines[room] = now + self._timeout_s
        return Handoff(self._host, self._port, room)

    def left(self, room: int, now: float) -> float:
        """Seconds until a room's deadline, at least 0; 0 for a room that is closed."""
        return max(0.0, self._deadlines.get(room, now) - now)

    def close(self, room: int) -> bool:
        """Whether the room was open."""
        return self._deadlines.pop(room, None) is not None

    def check(self, now: float, grace_s: float = 60.0) -> None:
        """Raises AssertionError when a room is open long after its deadline."""
        for room, deadline in self._deadlines.items():
            assert now <= deadline + grace_s, f"room {room} is open {now - deadline:.0f} s too long"
