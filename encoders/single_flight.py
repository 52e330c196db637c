"""Concurrent calls for one key share one computation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FlightCancelled(RuntimeError):
    """The computation was cancelled, but not by a caller: its executor or loop is going away."""


@dataclass
class FlightStats:
    """`calls` of `run`, `flights` begun, `joined`: calls that found a flight, `takeovers`: flights
    begun again by a caller whose first one failed.
    """

    calls: int = 0
    flights: int = 0
    joined: int = 0
    takeovers: int = 0


@dataclass(eq=False)
class _Flight(Generic[T]):
    # Insertion order is age: the first caller leads.
    callers: dict[object, None] = field(default_factory=dict)
    task: asyncio.Task[T] | None = None
    # The caller that a failure is reported to; all others try again.
    blamed: object = None


class SingleFlight(Generic[T]):
    """Runs one computation per key at a time.

    The computation is a task of its own: it goes on as long as one of its callers waits, so that a
    cancelled leader costs the followers nothing, and it is cancelled with its last caller. An error
    of a type in `shared` lies in the key itself and reaches every caller; any other failure reaches
    the oldest caller alone, and the next one takes over with its own computation. Every caller is
    blamed for at most one failure, so the attempts are bounded by the callers. All methods belong
    to one event loop.
    """

    def __init__(self, shared: type[Exception] | tuple[type[Exception], ...] = ()) -> None:
        self.stats = FlightStats()
        self._shared = shared
        self._flights: dict[str, _Flight[T]] = {}

    def __len__(self) -> int:
        """Keys in flight."""
        return len(self._flights)

    async def run(self, key: str, compute: Callable[[], Awaitable[T]]) -> T:
        """The result of `compute()`, or of the computation for `key` that is already running.

        Raises what the computation raises (see the class), or `FlightCancelled`.
        """
        self.stats.calls += 1
        again = False
        while True:
            me = object()
            flight = self._flights.get(key)
            if flight is None:
                flight = self._begin(key, compute)
                self.stats.takeovers += again
            else:
                self.stats.joined += not again
            task = flight.task
            assert task is not None
            flight.callers[me] = None
            try:
                await asyncio.wait([task])
            finally:
                self._leave(key, flight, me)
            if not task.cancelled():
                error = task.exception()
                if error is None:
                    return task.result()
                if isinstance(error, self._shared):
                    # A copy: one exception raised in many tasks would chain all their frames.
                    raise copy(error).with_traceback(None)
                if flight.blamed is me:
                    raise error
            elif flight.blamed is me:
                raise FlightCancelled("the computation was cancelled")
            again = True

    def _begin(self, key: str, compute: Callable[[], Awaitable[T]]) -> _Flight[T]:
        flight: _Flight[T] = _Flight()
        self._flights[key] = flight
        self.stats.flights += 1
        # An empty context: the task serves everybody, not the request that began it.
        flight.task = asyncio.create_task(self._fly(key, flight, compute), context=Context())
        flight.task.add_done_callback(_seen)
        return flight

    async def _fly(self, key: str, flight: _Flight[T], compute: Callable[[], Awaitable[T]]) -> T:
        try:
            return await compute()
        except BaseException:
            flight.blamed = next(iter(flight.callers), None)
            raise
        finally:
            # Before the task is done: nobody can join a flight that is over.
            self._remove(key, flight)

    def _leave(self, key: str, flight: _Flight[T], me: object) -> None:
        del flight.callers[me]
        task = flight.task
        if not flight.callers and task is not None and not task.done():
            self._remove(key, flight)
            task.cancel()

    def _remove(self, key: str, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def report(self) -> dict[str, Any]:
        """The counters and the keys in flight, as plain data."""
        return {**vars(self.stats), "in_flight": len(self)}

    def check(self) -> None:
        """Raises `AssertionError` when a flight is kept that nobody waits for or that is over."""
        for key, flight in self._flights.items():
            if flight.task is None or flight.task.done():
                raise AssertionError(f"the flight of {key} is over but still listed")
            if not flight.callers:
                raise AssertionError(f"nobody waits for the flight of {key}")


def _seen(task: asyncio.Task[Any]) -> None:
    """Callers that are cancelled just as the task fails leave nobody to look at its failure."""
    if not task.cancelled():
        task.exception()
