"""Clients that leave at once: nothing of theirs goes on, and the next ones are served."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx
import pytest
from openai import OpenAI

from bench.application import Application
from tests.e2e.media import Part, image, text
from tests.e2e.test_chat import MODEL, answer

pytestmark = pytest.mark.engine

CLIENTS = 500


def body(*parts: Part, **more: Any) -> dict[str, Any]:
    content = [*parts, text("what is it?")]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


def busy(stats: dict[str, Any]) -> dict[str, int]:
    """Everything that works, waits or holds memory for a request."""
    images, audio, engine = (
        stats[name] for name in ("image encoder", "audio encoder", "language model")
    )
    return {
        "chats": stats["gateway"]["chats"],
        "gateway flights": stats["gateway"]["single_flight"]["in_flight"],
        "gateway leases": stats["gateway"]["leased_bytes"],
        "image flights": images["single_flight"]["in_flight"],
        "images queued": images["queued_items"],
        "images pending": images["pending_calls"],
        "sound flights": audio["single_flight"]["in_flight"],
        "sounds pending": audio["pending_calls"],
        "engine requests": engine["requests"],
        "engine leases": engine["leased_bytes"],
    }


def stats_of(running: Application) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{running.url}/stats", timeout=30).json()
    return found


def wait_until_idle(running: Application, seconds: float) -> dict[str, int]:
    """What is still busy after so long; empty = nothing."""
    deadline = time.monotonic() + seconds
    while True:
        left = {name: count for name, count in busy(stats_of(running)).items() if count}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


async def storm(url: str) -> int:
    """Sends chats with pictures, known and new, and leaves each after 1 to 20 ms."""
    rng = random.Random(3)
    colours = ("red", "blue", "green", "yellow")
    pictures = [image("circle", c, size=(64 + 32 * n, 96)) for c in colours for n in range(8)]
    left = 0

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        nonlocal left
        chat = body(pictures[number % len(pictures)], stream=bool(number % 2), max_tokens=200)
        try:
            async with asyncio.timeout(rng.uniform(0.001, 0.020)):
                await client.post(f"{url}/v1/chat/completions", json=chat)
        except (TimeoutError, httpx.HTTPError):
            left += 1

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        await asyncio.gather(*(leave(client, number) for number in range(CLIENTS)))
    return left


async def fifty(url: str) -> list[int]:
    """The status of fifty chats that come together and wait."""
    async with httpx.AsyncClient(timeout=120) as client:
        replies = await asyncio.gather(
            *(
                client.post(
                    f"{url}/v1/chat/completions",
                    json=body(image("square", "red", size=(64, 64 + n % 5)), max_tokens=2),
                )
                for n in range(50)
            )
        )
    return [reply.status_code for reply in replies]


def test_a_cancel_storm_leaves_nothing_behind(client: OpenAI, running: Application) -> None:
    """500 clients that leave within 20 ms: no work, no lease, and the next fifty are served."""
    parts = [image("circle", "blue"), text("what is it?")]
    alone = answer(client, *parts)
    assert asyncio.run(storm(running.url)) == CLIENTS
    assert wait_until_idle(running, 15.0) == {}
    assert asyncio.run(fifty(running.url)) == [200] * 50
    assert wait_until_idle(running, 5.0) == {}
    assert answer(client, *parts) == alone
    stats = stats_of(running)
    assert stats["gateway"]["violations"] == stats["image encoder"]["violations"] == 0
