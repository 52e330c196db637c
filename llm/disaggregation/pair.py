"""One request on a prefill and a decode engine: both start, one answers, and both end together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

from llm.disaggregation.rooms import Handoff, Rooms
from llm.reply import ReplyHead

Pieces = AsyncGenerator[ReplyHead | bytes, None]
Side = Callable[[Handoff], Pieces]


class HandoverFailed(RuntimeError):
    """The KV of a request did not reach its decode engine."""


async def answer(
    rooms: Rooms, prefill: Side, decode: Side, clock: Callable[[], float] = time.monotonic
) -> Pieces:
    """The decode side's reply to a request that the prefill side computes.

    A reply of the prefill side that refuses the request (status 400 and above) is passed on. When
    either side fails, when nothing is decoded before the room's deadline, and when the caller
    leaves, both sides are closed, which frees what they hold, before this ends. Raises
    `HandoverFailed`, or what a side raised.
    """
    handoff = rooms.open(clock())
    computing = asyncio.ensure_future(_drain(prefill(handoff)))
    stream = decode(handoff)
    pending: asyncio.Future[ReplyHead | bytes] | None = None
    decoding = False
    try:
        while True:
            pending = asyncio.ensure_future(anext(stream))
            if not decoding:
                refusal = await _first(rooms, handoff, computing, pending, clock)
                if refusal:
                    for piece in refusal:
                        yield piece
                    return
            try:
                piece = await pending
            except StopAsyncIteration:
                return
            # A head alone may come before any token.
            decoding = decoding or isinstance(piece, bytes)
            yield piece
    finally:
        rooms.close(handoff.room)
        tasks: list[asyncio.Future[Any]] = [computing]
        if pending is not None:
            tasks.append(pending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(RuntimeError):
            await stream.aclose()


async def _first(
    rooms: Rooms,
    handoff: Handoff,
    computing: asyncio.Future[list[ReplyHead | bytes]],
    pending: asyncio.Future[ReplyHead | bytes],
    clock: Callable[[], float],
) -> list[ReplyHead | bytes]:
    """Wait for the next decoded piece; the prefill side's reply if it refused the request."""
    while not pending.done():
        waiting: set[asyncio.Future[Any]] = {pending}
        if not computing.done():
            waiting.add(computing)
        left = rooms.left(handoff.room, clock())
        done, _ = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if computing in done:
            # Raises what the prefill side raised.
            reply = computing.result()
            head = reply[0] if reply else None
            if isinstance(head, ReplyHead) and head.status >= 400:
                return reply
        if not done:
            raise HandoverFailed("no token was decoded before the handover's deadline")
    return []


async def _drain(side: Pieces) -> list[ReplyHead | bytes]:
    """The whole reply of the prefill side: short, it generates one token."""
    try:
        return [piece async for piece in side]
    finally:
        await side.aclose()
