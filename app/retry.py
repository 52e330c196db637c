"""Calls of stages: one more try when a replica died, and which of several failures to report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.errors import ApiError
from app.stages import BadMedia, StageDied

T = TypeVar("T")


async def twice(call: Callable[[], Awaitable[T]]) -> T:
    """One more try when the replica died: nothing of an encode has reached the client yet."""
    try:
        return await call()
    except StageDied:
        return await call()


def first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure to report: the client's own mistakes before ours."""
    flat = [
        first_failure(failure) if isinstance(failure, BaseExceptionGroup) else failure
        for failure in failures.exceptions
    ]
    return min(flat, key=lambda failure: not isinstance(failure, (ApiError, BadMedia)))
