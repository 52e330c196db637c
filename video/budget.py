"""The time one file may take, and the caller's right to change its mind."""

from __future__ import annotations

import time
from collections.abc import Callable

from video.errors import Cancelled, MediaError

POLL_SECONDS = 0.05


class Budget:
    """Asked at every read and every frame, so that no file holds a worker for long.

    `check` raises MediaError after `seconds`, and Cancelled once `cancelled()` is true (asked at
    most every 50 ms, since it may cost a system call).
    """

    def __init__(
        self, seconds: float = float("inf"), cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        now = time.monotonic()
        self._seconds = seconds
        self._deadline = now + seconds
        self._cancelled = cancelled
        self._next_poll = now + POLL_SECONDS

    def check(self) -> None:
        now = time.monotonic()
        if now > self._deadline:
            raise MediaError(f"decoding took longer than the {self._seconds:g} s one file may take")
        if now >= self._next_poll:
            self._next_poll = now + POLL_SECONDS
            if self._cancelled():
                raise Cancelled
