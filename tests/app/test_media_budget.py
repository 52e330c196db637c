"""The bytes of media that all requests hold together are bounded, and given back."""

from __future__ import annotations

import asyncio

import pytest

from app.media_budget import MediaBudget
from tests.app.fakes import World, chat, image, until, video_part, world
from tests.app.raw_server import Server, Write, ok
from tests.app.test_fetch import failure, fetcher


async def held(place: World) -> int:
    found: int = (await place.get("/stats")).json()["gateway"]["held_media_bytes"]
    return found


@pytest.mark.parametrize("declared", [True, False])
async def test_downloads_share_the_room(server: Server, declared: bool) -> None:
    more = asyncio.Event()

    async def slow(write: Write) -> None:
        length = b"content-length: 900\r\n" if declared else b""
        await write(b"HTTP/1.1 200 OK\r\n" + length + b"connection: close\r\n\r\n" + bytes(600))
        await more.wait()
        await write(bytes(300))

    server.answers.update({"/slow": slow, "/401": ok(bytes(401)), "/100": ok(bytes(100))})
    budget = MediaBudget(1000)
    fetch = fetcher(server, budget)
    url = f"http://127.0.0.1:{server.port}"
    first = asyncio.create_task(fetch.fetch(url + "/slow", 1000))
    await until(lambda: budget.held == 600)
    refused = await failure(fetch, url + "/401")
    assert (refused.status, budget.held) == (503, 600)
    assert len(await fetch.fetch(url + "/100", 1000)) == 100
    more.set()
    assert len(await first) == 900
    assert budget.held == 0
    assert len(await fetch.fetch(url + "/401", 1000)) == 401


async def test_a_full_gateway_says_when_to_come_back(server: Server) -> None:
    server.answers["/clip"] = ok(bytes(300))
    private = {"private_hosts": [f"127.0.0.1:{server.port}"]}
    limits = {"max_media_bytes": 500, "held_media_bytes": 600, "retry_after_s": 5}
    place = world(gateway=limits, fetch=private)
    remote = {"type": "video_url", "video_url": {"url": f"http://127.0.0.1:{server.port}/clip"}}
    place.images.delay = 30
    waiting = asyncio.create_task(place.post(chat(image(bytes(400)))))
    await until(lambda: place.images.running == 1)
    assert await held(place) == 400
    response = await place.post(chat(remote))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("overloaded", "messages[0].content[0]")
    waiting.cancel()
    await until(lambda: place.images.running == 0)
    place.images.delay = 0
    assert (await place.post(chat(remote))).status_code == 200
    assert await held(place) == 0


async def test_failed_requests_give_their_room_back() -> None:
    place = world(gateway={"max_media_bytes": 100})
    for parts in ([image(bytes(50)), image(bytes(101))], [video_part(b"bad"), image(b"x")]):
        await place.post(chat(*parts))
    assert await held(place) == 0
