"""The bytes of the files whose parts are being asked for, ready to be lent to worker processes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from video.shared import Held

FILES = 2
IDLE_SECONDS = 30.0
"""After the last call for a part; the next call would bring the bytes again."""


class HeldFiles:
    """At most FILES files by token, each until it was idle for IDLE_SECONDS.

    All methods belong to one event loop.
    """

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._held: OrderedDict[str, tuple[Held, asyncio.TimerHandle]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(held.size for held, _ in self._held.values())

    def __contains__(self, token: str) -> bool:
        return token in self._held

    async def get(self, token: str, data: memoryview) -> Held:
        """The file of that token: what is held, or a copy of `data`, which is not held yet."""
        if token in self._held:
            held, _ = self._held[token]
            self.keep(token, held)
            return held
        return await asyncio.to_thread(Held, data)

    def keep(self, token: str, held: Held) -> None:
        """Hold the file, and put off its end."""
        self._drop(token)
        timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._drop, token)
        self._held[token] = held, timer
        while len(self._held) > FILES:
            self._drop(next(iter(self._held)))

    def clear(self) -> None:
        """Let go of everything; calls under way keep what they use."""
        for token in list(self._held):
            self._drop(token)

    def _drop(self, token: str) -> None:
        found = self._held.pop(token, None)
        if found is not None:
            found[1].cancel()
