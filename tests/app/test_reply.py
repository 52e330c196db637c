"""Replies: streams that break end in an error event, and what has not begun is begun again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest

from app.stages import StageDied, StageFailed
from llm.reply import ReplyHead
from tests.app.fakes import World, chat, until, world

DIED = StageDied("language model", "ActorDiedError")


async def stream(place: World) -> list[bytes]:
    response = await place.post(chat(stream=True))
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    return [part + b"\n\n" for part in response.content.split(b"\n\n") if part]


async def test_a_stream_is_passed_on_as_it_is() -> None:
    place = world()
    place.llm.pieces = [b"data: 1\n\n", b"data: 2\n\ndata: [DO", b"NE]\n\n"]
    assert b"".join(await stream(place)) == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    assert place.llm.closed == 1


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (DIED, "the replica that wrote the answer died"),
        (StageFailed("language model", "boom"), "the answer broke off"),
    ],
)
async def test_a_broken_stream_ends_in_an_error_event(  # case 94
    failure: Exception, reason: str
) -> None:
    place = world()
    place.llm.pieces = [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n", failure]
    events = await stream(place)
    assert events[:3] == [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]
    assert len(events) == 4
    error = orjson.loads(events[3].removeprefix(b"data: "))["error"]
    assert error == {
        "message": reason,
        "type": "server_error",
        "param": None,
        "code": "reply_interrupted",
    }
    assert len(place.llm.seen) == 1  # what the client has seen is not written twice
    assert place.llm.closed == 1


async def test_a_stream_that_ends_early_is_an_error() -> None:  # case 94
    place = world()
    place.llm.pieces = [b"data: 1\n\n"]
    events = await stream(place)
    assert b'"error"' in events[-1]
    assert b"[DONE]" not in b"".join(events)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_reply_that_has_not_begun_is_begun_again(streamed: bool) -> None:
    place = world()
    place.llm.failures = [DIED]
    response = await place.post(chat(stream=streamed))
    assert response.status_code == 200
    assert len(place.llm.seen) == 2
    assert place.llm.closed == 2


async def test_a_head_without_a_body_counts_as_not_begun() -> None:
    place = world()
    pieces = place.llm.pieces
    place.llm.pieces = [DIED]
    first = place.llm.chat

    def chat_once(body: Any, embeddings: Any) -> AsyncGenerator[ReplyHead | bytes, None]:
        found = first(body, embeddings)
        if len(place.llm.seen) == 1:
            place.llm.pieces = pieces
        return found

    place.llm.chat = chat_once  # type: ignore[method-assign]
    assert await stream(place) == pieces
    assert len(place.llm.seen) == 2


async def test_a_second_death_is_503() -> None:
    place = world()
    place.llm.failures = [DIED, DIED]
    response = await place.post(chat())
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert len(place.llm.seen) == 2


async def test_the_deadline_ends_a_stream_with_an_error_event() -> None:
    place = world(gateway={"request_timeout_s": 0.1})

    async def slow(body: Any, embeddings: Any) -> AsyncGenerator[ReplyHead | bytes, None]:
        yield ReplyHead(200, "text/event-stream")
        yield b"data: 1\n\n"
        await asyncio.sleep(30)

    place.llm.chat = slow  # type: ignore[method-assign]
    events = await stream(place)
    assert len(events) == 2
    assert b'"code":"timeout"' in events[1]


async def test_other_statuses_of_the_engine_are_passed_on() -> None:
    place = world()

    async def refuses(body: Any, embeddings: Any) -> AsyncGenerator[ReplyHead | bytes, None]:
        yield ReplyHead(400, "application/json")
        yield b'{"error":'
        yield b"{}}"

    place.llm.chat = refuses  # type: ignore[method-assign]
    response = await place.post(chat(stream=True))
    assert (response.status_code, response.json()) == (400, {"error": {}})
    assert response.headers["content-length"] == "12"


@pytest.mark.parametrize("items", [[], [b"body"], [ReplyHead(200, "text/event-stream")]])
async def test_a_reply_against_the_contract_is_500(items: list[Any]) -> None:
    place = world()

    async def odd(body: Any, embeddings: Any) -> AsyncGenerator[ReplyHead | bytes, None]:
        for item in items:
            yield item

    place.llm.chat = odd  # type: ignore[method-assign]
    response = await place.post(chat())
    assert response.status_code == 500
    await until(lambda: not place.gateway._chats)
