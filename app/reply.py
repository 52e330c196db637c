"""The language model's reply on its way to the client, and what happens when it breaks off.

Until the first byte of the body is there, nothing has reached the client: a reply that breaks then
is begun once more. Afterwards a broken stream ends in an error event, without `[DONE]`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from app.errors import ApiError
from app.stages import StageDied, StageError, StageFailed
from llm.reply import ReplyHead

logger = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
_DONE = b"data: [DONE]"
_LLM = "language model"

Source = AsyncGenerator[ReplyHead | bytes, None]


@dataclass(frozen=True)
class Reply:
    """An HTTP reply, whole or as a stream of pieces.

    A stream must be closed by whoever sends it: it holds the engine's work.
    """

    status: int
    media_type: str
    body: bytes | AsyncGenerator[bytes, None]


async def open_reply(start: Callable[[], Source], deadline: float) -> Reply:
    """Begin a reply; `start` asks the language model, `deadline` is a time of the event loop.

    Returns once the first piece of an event stream, or all of any other body, is there. Raises
    `StageError`, or `ApiError` when the deadline passes.
    """
    try:
        return await _begin(start(), deadline)
    except StageDied:
        logger.warning("the language model's replica died before its reply began; trying again")
        return await _begin(start(), deadline)


async def _begin(source: Source, deadline: float) -> Reply:
    begun = False
    try:
        head = await _next(source, deadline)
        if not isinstance(head, ReplyHead):
            raise StageFailed(_LLM, "the reply does not begin with a head")
        if head.media_type.partition(";")[0].strip() == EVENT_STREAM:
            first = await _next(source, deadline)
            begun = True
            return Reply(head.status, head.media_type, _events(_bytes(first), source, deadline))
        body = bytearray()
        async for chunk in _rest(source, deadline):
            body += chunk
        return Reply(head.status, head.media_type, bytes(body))
    except StopAsyncIteration:
        raise StageFailed(_LLM, "the reply ended before it began") from None
    finally:
        if not begun:
            await source.aclose()


async def _events(first: bytes, source: Source, deadline: float) -> AsyncGenerator[bytes, None]:
    """The pieces of an event stream; a failure becomes an error event and the end."""
    tail = b""
    async with aclosing(source):
        try:
            yield first
            tail = first[-32:]
            async for chunk in _rest(source, deadline):
                yield chunk
                tail = (tail + chunk)[-32:]
            if _DONE not in tail:
                raise StageFailed(_LLM, "the stream ended without [DONE]")
        except (StageError, ApiError) as failure:
            logger.warning("a reply broke off: %s", failure)
            yield _broken(failure).event()


def _broken(failure: StageError | ApiError) -> ApiError:
    if isinstance(failure, ApiError):
        return failure
    died = isinstance(failure, StageDied)
    reason = "the replica that wrote the answer died" if died else "the answer broke off"
    return ApiError(500, reason, code="reply_interrupted")


async def _rest(source: Source, deadline: float) -> AsyncIterator[bytes]:
    while True:
        try:
            yield _bytes(await _next(source, deadline))
        except StopAsyncIteration:
            return


async def _next(source: Source, deadline: float) -> ReplyHead | bytes:
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(source)
    except TimeoutError:
        raise ApiError(504, "the request took longer than it may", code="timeout") from None


def _bytes(item: ReplyHead | bytes) -> bytes:
    if isinstance(item, ReplyHead):
        raise StageFailed(_LLM, "the reply has two heads")
    return item
