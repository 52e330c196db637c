"""Clients that leave at once: nothing of theirs goes on, and the next ones are served."""

from __future__ import annotations

import asyncio
import json
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
# The clients come within this time.
SECONDS = 2.0

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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


def wire(chat: dict[str, Any], host: str) -> bytes:
    """A chat as it goes over a connection."""
    content = json.dumps(chat).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def storm(url: str, clients: int, patience: tuple[float, float]) -> int:
    """Sends chats with pictures, half of them new, and leaves each after so many seconds.

    All connections stand before the first chat is sent: a client that is still connecting would
    leave before the server knew of it. Returns how many left without a byte of an answer.
    """
    rng = random.Random(3)
    colours = ("red", "blue", "green", "yellow")
    pictures = [image("circle", c, size=(64 + 32 * n, 96)) for c in colours for n in range(8)]
    host, port = httpx.URL(url).host, httpx.URL(url).port

    async def leave(number: int, connection: Connection) -> bool:
        reader, writer = connection
        new = image("square", colours[number % 4], size=(65 + number, 160))
        picture = new if number % 2 else pictures[number % len(pictures)]
        asked = body(picture, stream=bool(number % 3), max_tokens=200, ignore_eos=True)
        request = wire(asked, f"{host}:{port}")
        await asyncio.sleep(rng.uniform(0, SECONDS))
        writer.write(request)
        await writer.drain()
        try:
            await asyncio.wait_for(reader.read(1), rng.uniform(*patience))
        except TimeoutError:
            return True
        finally:
            writer.transport.abort()
        return False

    connections = [await asyncio.open_connection(host, port) for _ in range(clients)]
    return sum(await asyncio.gather(*map(leave, range(clients), connections)))


def looked_up(running: Application) -> int:
    """Media items that the gateway has looked for in the store so far."""
    store = stats_of(running)["gateway"]["store"]
    return int(store["hits"] + store["misses"])


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
    """500 clients that leave within 20 ms, most of them before the gateway has heard of them, and
    100 more patient ones: no work, no lease, and the next fifty are served."""
    parts = [image("circle", "blue"), text("what is it?")]
    alone = answer(client, *parts)
    assert asyncio.run(storm(running.url, CLIENTS, (0.001, 0.020))) > CLIENTS / 2
    assert wait_until_idle(running, 15.0) == {}
    before = looked_up(running)
    assert asyncio.run(storm(running.url, 100, (0.02, 0.2))) > 50
    # These come as far as the encoders and the engine.
    assert looked_up(running) - before > 10
    assert wait_until_idle(running, 15.0) == {}
    assert asyncio.run(fifty(running.url)) == [200] * 50
    assert wait_until_idle(running, 5.0) == {}
    assert answer(client, *parts) == alone
    stats = stats_of(running)
    assert stats["gateway"]["violations"] == stats["image encoder"]["violations"] == 0
