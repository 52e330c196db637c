"""Size functions that misbehave, imported by worker processes under test."""

from __future__ import annotations

import gc
import os
import signal
import time

from video.budget import Budget


def die(*_: int) -> tuple[int, int]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def die_once(mark: str, frames: int, height: int, width: int) -> tuple[int, int]:
    if not os.path.exists(mark):
        with open(mark, "w"):
            die()
    return height, width


def die_at(frames_that_kill: int, frames: int, height: int, width: int) -> tuple[int, int]:
    if frames == frames_that_kill:
        die()
    return height, width


def hang(*_: int) -> tuple[int, int]:
    """As a codec in an endless loop: looks at no budget."""
    while True:
        time.sleep(1)


def wait_for_the_budget(*_: int) -> tuple[int, int]:
    """As long decoding does: asks the job's budget again and again."""
    (budget,) = (thing for thing in gc.get_objects() if isinstance(thing, Budget))
    while True:
        budget.check()
        time.sleep(0.01)


def blunder(*_: int) -> tuple[int, int]:
    return 1 // 0, 1
