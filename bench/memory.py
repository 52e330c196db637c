"""Peak memory of a process and its children while something runs, by mapping."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

INTERVAL_SECONDS = 0.03

Ignore = Callable[[str], bool]
"""A mapping's name in /proc/PID/smaps -> whether it does not count."""


class PeakMemory:
    """Samples resident bytes of this process and all below it; pages that several of them map are
    counted once (proportional set size).

    with PeakMemory(ignore) as memory: ...; memory.peak is then the largest sum.
    """

    def __init__(self, ignore: Ignore = lambda name: False) -> None:
        self._ignore = ignore
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.base = 0
        self.peak = 0

    def __enter__(self) -> Self:
        self.base = self.peak = resident(self._ignore)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self.peak = max(self.peak, resident(self._ignore))


def resident(ignore: Ignore) -> int:
    """Bytes now."""
    me = psutil.Process()
    return sum(_process(process.pid, ignore) for process in [me, *me.children(recursive=True)])


def _process(pid: int, ignore: Ignore) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return 0
    total, counted = 0, True
    for line in lines:
        key, *values = line.split()
        if not key.endswith(":"):  # the head of a mapping: range, rights, offset, device, inode
            counted = not ignore(" ".join(values[4:]))
        elif key == "Pss:" and counted:
            total += int(values[0]) * 1024
    return total
