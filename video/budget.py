"""The time one file may take, and the caller's right to change its mind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from video.errors import Cancelled, MediaError

POLL_SECONDS = 0.05


class Budget:
    """Asked at every read and every frame, so that no file holds a worker for long.

    `check` raises MediaError after `seconds`, of which `spent` are gone already, and Cancelled once
    `cancelled()` is true (asked at most every 50 ms, since it may cost a system call).
    """

    def __init__(
        self,
        seconds: float = float("inf"),
        cancelled: Callable[[], bool] = lambda: False,
        spent: float = 0.0,
    ) -> None:
        now = time.monotonic()
        self._seconds = seconds
        self._deadline = now + seconds - spent
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


class Account:
    """The time that one file has taken in all its jobs; what several take at once counts once.

    Used from several threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._since = 0.0
        self._spent = 0.0

    @contextmanager
    def job(self) -> Iterator[float]:
        """While a job runs; gives the seconds spent before it."""
        with self._lock:
            now = self._clock()
            spent = self._spent + (now - self._since if self._running else 0.0)
            if not self._running:
                self._since = now
            self._running += 1
        try:
            yield spent
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._spent += self._clock() - self._since
