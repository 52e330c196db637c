"""What the tests of the batcher share: a pass that doubles its items, and calls whose failures are
results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from encoders.batcher import Batcher

Int = Batcher[int, int]


def double(items: Sequence[int]) -> list[int]:
    return [2 * item for item in items]


async def gather(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)
