"""Work that a replica has accepted and not finished: what autoscaling and operators look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class Pending:
    """Work of one call, estimated until it is known."""

    work: float


class Backlog:
    """The sum of all pending work, in patches or mel frames.

    A call whose work is not known yet counts as the mean of those before it (`first_guess` before
    there are any).
    """

    def __init__(self, first_guess: float) -> None:
        self._pending: set[Pending] = set()
        self._mean = first_guess
        self._known = 0

    @property
    def work(self) -> float:
        return sum(pending.work for pending in self._pending)

    @property
    def mean_work(self) -> float:
        """Mean work of a call so far."""
        return self._mean

    def __len__(self) -> int:
        """Calls that are not finished."""
        return len(self._pending)

    @contextmanager
    def pending(self, work: float | None = None) -> Iterator[Pending]:
        """Counts a call of so much work until the block ends, however it ends."""
        pending = Pending(self._mean if work is None else work)
        self._pending.add(pending)
        if work is not None:
            self._learn(work)
        try:
            yield pending
        finally:
            self._pending.remove(pending)

    def known(self, pending: Pending, work: float) -> None:
        """Replace an estimate."""
        pending.work = work
        self._learn(work)

    def _learn(self, work: float) -> None:
        self._known += 1
        # Recent calls count most, so that the mean follows the traffic.
        self._mean += (work - self._mean) / min(self._known, 100)
