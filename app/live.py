"""Replies that begin before their answer: a client sees that its long clip moves.

A streamed request whose clip takes long is answered with SSE comments until the language model
writes. From the first comment on the status is 200: what fails later is an error event at the end
of the stream, without `[DONE]`, as when an answer breaks off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from app.errors import ApiError
from app.progress import Progress
from app.reply import EVENT_STREAM, Reply

# Periods without news after which the last comment is repeated, so that no proxy between gives up.
_QUIET = 15


async def watched(work: Coroutine[Any, Any, Reply], progress: Progress, period_s: float) -> Reply:
    """The reply that `work` gives, or one that tells of the progress first.

    The latter once a part of a long clip is done, looked at every `period_s`. Raises what `work`
    raises until then.
    """
    task = asyncio.create_task(work)
    try:
        while not task.done() and not progress.moving:
            await asyncio.wait({task}, timeout=period_s)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if task.done():
        return task.result()
    return Reply(200, EVENT_STREAM, _Live(task, progress, period_s))


class _Live(AsyncGenerator[bytes, None]):
    """The events of a reply under way. Closing it stops the work, also when nothing was read yet
    (which a plain generator would not notice)."""

    def __init__(self, task: asyncio.Task[Reply], progress: Progress, period_s: float) -> None:
        self._task = task
        self._events = _events(task, progress, period_s)

    async def asend(self, value: None) -> bytes:
        return await self._events.asend(value)

    async def athrow(self, *error: Any) -> bytes:
        return await self._events.athrow(*error)

    async def aclose(self) -> None:
        await self._events.aclose()
        await _stop(self._task)


async def _events(
    task: asyncio.Task[Reply], progress: Progress, period_s: float
) -> AsyncGenerator[bytes, None]:
    quiet = 0
    while not task.done():
        news = list(progress.news())
        quiet = 0 if news else quiet + 1
        if quiet == _QUIET:
            quiet, news = 0, list(progress.again())
        for line in news:
            yield line
        await asyncio.wait({task}, timeout=period_s)
    try:
        reply = task.result()
    except ApiError as failure:
        yield failure.event()
        return
    if isinstance(reply.body, bytes):  # the language model refuses the request
        yield b"data: %s\n\n" % reply.body.replace(b"\n", b" ")
        return
    async with aclosing(reply.body) as body:
        async for piece in body:
            yield piece


async def _stop(task: asyncio.Task[Reply]) -> None:
    """End the work, and close what came of it."""
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(result, Reply) and not isinstance(result.body, bytes):
        await result.body.aclose()
