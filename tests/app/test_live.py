"""Progress over HTTP: comments while a long clip is in work, then the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from app.progress import Board, Progress
from app.stages import BadMedia, StageDied
from tests.app.fakes import World, chat, image, long_clip, text, until, video_part, world


@pytest.fixture
def place() -> World:
    place = world(gateway={"progress_period_s": 0.02})
    place.video.long = long_clip(parts=12)
    place.video.delay = 0.03
    return place


def lines(response: httpx.Response) -> list[str]:
    return [line for line in response.text.split("\n") if line]


async def test_comments_come_before_the_answer(place: World) -> None:
    response = await place.post(chat(text(), video_part(), stream=True))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    found = lines(response)
    comments = [line for line in found if line.startswith(": progress ")]
    assert len(comments) >= 2
    assert found == [*comments, "data: {}", "data: [DONE]"]
    told = [orjson.loads(line.removeprefix(": progress ")) for line in comments]
    assert all(t["item"] == "messages[0].content[1]" and t["total"] == 12 for t in told)
    done = [t["done"] for t in told]
    assert done == sorted(set(done))
    assert not place.gateway._pipeline._media.board.parts  # nothing is left behind


async def test_each_clip_is_told_of(place: World) -> None:
    response = await place.post(chat(video_part(b"one"), video_part(b"two"), stream=True))
    items = {orjson.loads(s[11:])["item"] for s in lines(response) if s.startswith(": ")}
    assert items == {"messages[0].content[0]", "messages[0].content[1]"}


async def test_two_requests_for_one_clip_both_see_it(place: World) -> None:
    body = chat(video_part(), stream=True)
    replies = await asyncio.gather(place.post(body), place.post(body))
    assert all(": progress" in reply.text for reply in replies)
    assert all("data: [DONE]" in reply.text for reply in replies)
    assert [name for name, _ in place.video.seen].count("decode_part") == 12


@pytest.mark.parametrize(
    "body", [chat(video_part()), chat(image(), stream=True), chat(text(), stream=True)]
)
async def test_other_requests_have_none(place: World, body: dict[str, Any]) -> None:
    response = await place.post(body)
    assert response.status_code == 200
    assert ": progress" not in response.text


async def test_short_clips_have_none(place: World) -> None:
    place.video.long = None
    response = await place.post(chat(video_part(), stream=True))
    assert lines(response) == ["data: {}", "data: [DONE]"]


async def test_a_clip_that_is_refused_at_once_is_still_400(place: World) -> None:
    place.video.failures = [BadMedia("the file is damaged")]
    response = await place.post(chat(video_part(), stream=True))
    assert response.status_code == 400


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (BadMedia("it is broken"), "messages[0].content[0]: it is broken"),
        (StageDied("image encoder", "gone"), "the image encoder is not available"),
    ],
)
async def test_later_failures_are_error_events(
    place: World, failure: Exception, words: str
) -> None:
    encode = place.images.encode_part

    async def fail_at_the_fifth(frames: Any, *rest: Any) -> Any:
        if frames[0, 0, 0, 0] == 16:
            raise failure
        return await encode(frames, *rest)

    place.images.encode_part = fail_at_the_fifth  # type: ignore[method-assign]
    response = await place.post(chat(video_part(), stream=True))
    assert response.status_code == 200
    *comments, event = lines(response)
    assert comments
    assert all(line.startswith(": progress") for line in comments)
    assert words in orjson.loads(event.removeprefix("data: "))["error"]["message"]
    assert "[DONE]" not in response.text


async def test_a_request_that_the_model_refuses(place: World) -> None:
    place.llm.failures = [StageDied("language model", "gone")] * 2
    response = await place.post(chat(video_part(), stream=True))
    assert "the language model is not available" in lines(response)[-1]
    assert "[DONE]" not in response.text


async def gone(place: World, after: int) -> AsyncIterator[bytes]:
    """What a client reads that leaves after some messages."""
    sent: list[dict[str, Any]] = []
    left = asyncio.Event()
    body = orjson.dumps(chat(video_part(), stream=True))

    async def receive() -> dict[str, Any]:
        if not sent:
            sent.append({})
            return {"type": "http.request", "body": body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if len(sent) > after:
            left.set()
            await asyncio.sleep(0)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [],
    }  # fmt: skip
    await place.gateway(scope, receive, send)  # type: ignore[arg-type]
    for message in sent[1:]:
        yield message.get("body", b"")


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_client_that_leaves_stops_the_work(place: World, after: int) -> None:
    place.video.long = long_clip(parts=200)
    async for _ in gone(place, after):
        pass
    await until(lambda: not place.video.running and not place.images.running)
    decoded = [name for name, _ in place.video.seen].count("decode_part")
    assert decoded < 60
    await asyncio.sleep(0.1)
    assert [name for name, _ in place.video.seen].count("decode_part") == decoded
    assert not place.llm.seen
    assert not place.gateway._pipeline._media.board.parts


async def test_a_quiet_clip_repeats_its_last_comment(place: World) -> None:
    stuck = asyncio.Event()
    decode = place.video.decode_part

    async def hang_at_the_third(held: Any, token: str, sampling: Any, size: Any, part: Any) -> Any:
        if part.first == 8:
            await stuck.wait()
        return await decode(held, token, sampling, size, part)

    place.video.decode_part = hang_at_the_third  # type: ignore[method-assign]
    asyncio.get_running_loop().call_later(1.0, stuck.set)
    response = await place.post(chat(video_part(), stream=True))
    comments = [line for line in lines(response) if line.startswith(": ")]
    assert len(comments) > len(set(comments))
    assert "[DONE]" in response.text


def test_news_are_told_once() -> None:
    board = Board()
    progress = Progress(board)
    progress.follow("here", "digest")
    assert not progress.moving
    assert list(progress.news()) == []
    board.begin("digest", 3)
    assert not progress.moving
    assert len(list(progress.news())) == 1
    assert list(progress.news()) == []
    board.step("digest")
    assert progress.moving
    assert list(progress.news()) == [b': progress {"item":"here","done":1,"total":3}\n\n']
    assert list(progress.again()) == [b': progress {"item":"here","done":1,"total":3}\n\n']
    board.end("digest")
    assert not progress.moving
    assert list(progress.news()) == []
