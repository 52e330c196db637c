"""The HTTP surface: routes, limits, error objects, clients that leave."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from app.errors import MAX_MESSAGE, ApiError
from app.stages import StageDied
from tests.app.fakes import NAME, World, audio_part, chat, data_uri, image, text, until, world


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object, checked for OpenAI's shape and the size limit."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) < 2048
    document = response.json()
    assert list(document) == ["error"]
    assert set(document["error"]) == {"message", "type", "param", "code"}
    found: dict[str, Any] = document["error"]
    return found


async def test_health_models_and_ready() -> None:
    place = world()
    assert (await place.get("/health")).json() == {"status": "alive"}
    listing = (await place.get("/v1/models")).json()
    assert listing["object"] == "list"
    (model,) = listing["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == (NAME, "model", 16384)
    assert (await place.get(f"/v1/models/{NAME}")).json() == model
    assert error(await place.get("/v1/models/other"), 404)["code"] == "model_not_found"
    ready = (await place.get("/ready")).json()
    assert ready["status"] == "ready"
    assert list(ready["stages"]) == [
        "image encoder",
        "audio encoder",
        "video decoder",
        "language model",
    ]


async def test_ready_names_the_stages_that_do_not_answer() -> None:
    place = world(gateway={"ready_timeout_s": 0.05})
    place.audio.is_ready = False

    async def never() -> bool:
        await asyncio.sleep(30)
        return True

    async def dead() -> bool:
        raise StageDied("language model", "gone")

    place.video.ready = never  # type: ignore[method-assign]
    place.llm.ready = dead  # type: ignore[method-assign]
    response = await place.get("/ready")
    message = "not ready: audio encoder, video decoder, language model"
    assert error(response, 503)["message"] == message
    assert "retry-after" in response.headers
    assert (await place.get("/health")).status_code == 200


async def test_models_of_a_dead_stage() -> None:
    place = world()
    place.llm.failures = [StageDied("language model", "gone")]
    error(await place.get("/v1/models"), 503)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/completions", "/v1/" + "x" * 5000])
async def test_unknown_paths(path: str) -> None:
    assert error(await world().get(path), 404)["code"] == "not_found"


async def test_wrong_methods() -> None:
    place = world()
    assert "POST only" in error(await place.get("/v1/chat/completions"), 405)["message"]
    async with place.client() as client:
        assert "GET only" in error(await client.post("/health"), 405)["message"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not valid JSON (line 1, column 1)"),
        (b'{"model": "m",\n x}', "not valid JSON (line 2, column 2)"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"a": "\\ud800"}', "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "nested more than 128 levels"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
    ],
)
async def test_bodies_that_are_no_json_object(body: bytes, reason: str) -> None:
    found = error(await world().post(content=body), 400)
    assert (found["code"], found["type"]) == ("invalid_json", "invalid_request_error")
    assert reason in found["message"]


async def test_the_model_must_exist() -> None:
    place = world()
    found = error(await place.post({**chat(), "model": "gpt-4"}), 404)
    assert (found["code"], found["param"]) == ("model_not_found", "model")
    assert found["message"] == f"the model 'gpt-4' does not exist; this server has '{NAME}'"
    for model in (None, 3, ""):
        assert error(await place.post({**chat(), "model": model}), 400)["param"] == "model"
    error(await place.post({**chat(), "model": "x" * 100_000}), 404)
    assert not place.llm.seen


async def test_errors_name_message_and_part() -> None:
    place = world()
    body = chat(text(), {"type": "picture"})
    body["messages"].insert(0, {"role": "system", "content": "s"})
    found = error(await place.post(body), 400)
    assert found["param"] == "messages[1].content[1]"
    for part in (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@"}},
        {"type": "image_url", "image_url": {"url": "data:image/png"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},  # case 20
        {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
        {"type": "input_audio", "input_audio": {"data": "@@@@"}},
    ):
        found = error(await place.post(chat(part)), 400)
        assert (found["param"], found["code"]) == ("messages[0].content[0]", "invalid_media")
        assert "passwd" not in found["message"]


def padded(size: int) -> bytes:
    """A chat request of exactly `size` bytes."""
    body = orjson.dumps(chat())
    return body + b" " * (size - len(body))


@pytest.mark.parametrize("size", [1999, 2000, 2001])
@pytest.mark.parametrize("chunked", [False, True])
async def test_body_limit(size: int, chunked: bool) -> None:  # case 16
    place = world(gateway={"max_body_bytes": 2000})
    body = padded(size)

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, size, 100):
            yield body[at : at + 100]

    response = await place.post(content=pieces() if chunked else body)
    if size <= 2000:
        assert response.status_code == 200
    else:
        found = error(response, 413)
        assert found["code"] == "request_too_large"
        assert "2000 bytes" in found["message"]


async def test_a_body_without_end_is_cut_off() -> None:  # case 17
    place = world(gateway={"max_body_bytes": 2000})
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 100
            yield b" " * 100

    response = await place.post(content=endless())
    error(response, 413)
    assert response.headers["connection"] == "close"
    assert sent <= 4400


async def test_a_body_just_above_the_limit_is_taken_before_the_error() -> None:
    # Otherwise a client that is still sending would see a broken connection, not the error.
    place = world(gateway={"max_body_bytes": 2000})
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(30):
            sent += 100
            yield b" " * 100

    for headers in ({}, {"content-length": "3000"}):
        sent = 0
        response = await place.post(content=pieces(), headers=headers)
        error(response, 413)
        assert sent == 3000
        assert "connection" not in response.headers


async def test_a_body_that_does_not_arrive_is_408() -> None:
    place = world(gateway={"body_timeout_s": 0.05})

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    assert error(await place.post(content=slow()), 408)["code"] == "timeout"


@pytest.mark.parametrize("size", [99, 100, 101])
async def test_media_limit(size: int) -> None:  # case 16
    place = world(gateway={"max_media_bytes": 100})
    for part in (image(b"x" * size), audio_part(b"x" * size)):
        response = await place.post(chat(part))
        if size <= 100:
            assert response.status_code == 200
        else:
            found = error(response, 413)
            assert (found["code"], found["param"]) == ("media_too_large", "messages[0].content[0]")
            assert "100 bytes" in found["message"]


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_media_count_limit(count: int) -> None:
    place = world(gateway={"max_media_items": 3})
    response = await place.post(chat(*[image(bytes([i])) for i in range(count)]))
    if count <= 3:
        assert response.status_code == 200
    else:
        assert error(response, 400)["code"] == "too_many_media"


async def test_payloads_are_never_echoed() -> None:
    place = world()
    secret = b"S3CRET" * 5000
    for part in (
        {"type": "image_url", "image_url": {"url": data_uri(b"bad" + secret)}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,!" + secret.decode()}},
        {"type": "image_url", "image_url": {"url": "http://" + secret.decode()}},
        {"type": "image_url", "image_url": {"url": "gopher://x/" + secret.decode()}},
    ):
        response = await place.post(chat(part))
        assert error(response, 400)
        assert b"S3CRET" not in response.content


async def test_capacity_is_503_with_retry_after() -> None:
    place = world(gateway={"max_concurrent_requests": 1, "retry_after_s": 3})
    place.llm.delay = 0.2
    first = asyncio.create_task(place.post(chat()))
    await until(lambda: bool(place.llm.seen))
    response = await place.post(chat())
    assert error(response, 503)["code"] == "overloaded"
    assert response.headers["retry-after"] == "3"
    assert (await place.get("/health")).status_code == 200
    assert (await first).status_code == 200
    assert (await place.post(chat())).status_code == 200


class Connection:
    """A raw ASGI connection whose client can leave."""

    def __init__(self, place: World, body: dict[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": orjson.dumps(body)})
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        self.task = asyncio.create_task(place.gateway(scope, self._inbox.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(dict(message))

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})


async def test_a_client_that_leaves_cancels_its_encodes() -> None:  # cases 85, 89
    place = world()
    place.images.delay = place.video.delay = 30
    connection = Connection(place, chat(image(b"1"), image(b"2"), audio_part()))
    await until(lambda: place.images.running == 2 and place.video.running == 1)
    connection.leave()
    await asyncio.wait_for(connection.task, 1)
    assert (place.images.running, place.images.cancelled, place.video.cancelled) == (0, 2, 1)
    assert not connection.sent
    assert not place.llm.seen


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_closes_the_engine_stream(streamed: bool) -> None:
    place = world()
    place.llm.delay = 30
    connection = Connection(place, chat(stream=streamed))
    await until(lambda: bool(place.llm.seen))
    connection.leave()
    await asyncio.wait_for(connection.task, 1)
    assert place.llm.closed == 1


async def test_a_client_that_leaves_in_the_middle_of_a_stream() -> None:
    place = world()
    place.llm.pieces = [b"data: 1\n\n"] * 1_000_000
    connection = Connection(place, chat(stream=True))
    await until(lambda: len(connection.sent) > 10)
    connection.leave()
    await asyncio.wait_for(connection.task, 1)
    assert place.llm.closed == 1
    assert connection.sent[-1]["more_body"]


async def test_a_cancelled_handler_cancels_the_work() -> None:  # Serve cancels the whole request
    place = world()
    place.images.delay = 30
    connection = Connection(place, chat(image()))
    await until(lambda: place.images.running == 1)
    connection.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connection.task
    assert place.images.cancelled == 1


async def test_a_storm_of_leaving_clients_leaves_nothing_behind() -> None:  # case 89
    place = world(gateway={"max_concurrent_requests": 200})
    place.images.delay = 0.01
    connections = []
    for number in range(200):
        connections.append(Connection(place, chat(image(bytes([number])), stream=True)))
        if number % 3:
            connections[-1].leave()
        await asyncio.sleep(0.0005)
    await asyncio.wait_for(asyncio.gather(*(c.task for c in connections)), 10)
    assert place.images.running == 0
    assert place.gateway._chats == 0
    assert (await place.post(chat(image()))).status_code == 200


async def test_an_unexpected_failure_is_500_without_its_text() -> None:
    place = world()
    place.images.failures = [RuntimeError("secret detail")]
    response = await place.post(chat(image()))
    assert error(response, 500)["message"] == "the gateway failed"


async def test_lifespan_is_answered() -> None:
    place = world()
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    for kind in ("lifespan.startup", "lifespan.shutdown"):
        inbox.put_nowait({"type": kind})
    await place.gateway({"type": "lifespan"}, inbox.get, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_error_types(status: int, kind: str) -> None:
    assert ApiError(status, "x").document()["error"]["type"] == kind


def test_error_bodies_stay_below_two_kilobytes() -> None:
    worst = ApiError(
        400, "é" * 5000, code="invalid_media", param="messages[100000].content[100000]"
    )
    assert len(worst.message) == MAX_MESSAGE + 3
    assert len(ApiError(400, "x" * 5000).body()) < 2048


def test_the_gateway_imports_nothing_heavy() -> None:
    code = (
        "import sys, app.builder, app.deployment, app.serve_stages\n"
        "heavy = {'torch', 'av', 'sglang', 'transformers', 'PIL'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
