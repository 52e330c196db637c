"""Bad requests over HTTP: OpenAI's error object, the right status, the part named, no echo."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from bench.application import Application
from tests.e2e.media import Part, clip, data_uri, image, image_bytes, text
from tests.e2e.test_chat import MODEL, answer

pytestmark = pytest.mark.engine


def post(running: Application, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(
        f"{running.url}/v1/chat/completions",
        content=content,
        headers={"content-type": "application/json"},
        timeout=60,
    )


def chat(*parts: Part, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": list(parts)}], **more}


def image_part(data: bytes) -> Part:
    return {"type": "image_url", "image_url": {"url": data_uri(data, "image/png")}}


def url_part(url: str, kind: str = "image_url") -> Part:
    return {"type": kind, kind: {"url": url}}


PNG = image_bytes("square", "red")

BAD: dict[str, tuple[Any, int, str]] = {
    "not json": (b"{nope", 400, "JSON"),
    "unknown model": ({"model": "gpt-9", "messages": []}, 404, "gpt-9"),
    "unknown part": (chat(text("x"), {"type": "hologram"}), 400, "messages[0].content[1]"),
    "cut image": (chat(text("x"), image_part(PNG[:90])), 400, "messages[0].content[1]"),
    "signature only": (chat(image_part(PNG[:7])), 400, "messages[0].content[0]"),
    "junk base64": (chat(url_part("data:image/png;base64,@@@@")), 400, "messages[0].content[0]"),
    "local file": (chat(url_part("file:///etc/passwd")), 400, "messages[0].content[0]"),
    "private address": (chat(url_part("http://127.0.0.1:9/x.png")), 400, "messages[0].content[0]"),
    "metadata address": (chat(url_part("http://169.254.169.254/x")), 400, "messages[0].content[0]"),
    "image as video": (
        chat(url_part(data_uri(b"nothing" * 50, "video/mp4"), "video_url")),
        400,
        "messages[0].content[0]",
    ),
    "playlist as video": (
        chat(url_part(data_uri(b"#EXTM3U\nhttp://127.0.0.1/a.ts\n", "video/mp4"), "video_url")),
        400,
        "messages[0].content[0]",
    ),
    "noise as sound": (
        chat({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        400,
        "messages[0].content[0]",
    ),
    "too many items": (chat(*[image("square", "red", size=(32, 32))] * 300), 400, "media"),
    "engine's own check": (chat(text("x"), top_p=7), 400, "top_p"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(running: Application, name: str) -> None:
    body, status, words = BAD[name]
    reply = post(running, body)
    assert reply.status_code == status, reply.text
    assert len(reply.content) < 2048
    error = reply.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert words in error["message"] or words == error["param"]
    assert "base64," not in reply.text


def test_a_body_over_the_limit(running: Application) -> None:
    reply = post(running, b'{"model": "' + b"x" * 200_000_000)
    assert reply.status_code == 413
    assert "limit" in reply.json()["error"]["message"]


def test_one_bad_item_harms_no_neighbour(
    client: OpenAI, running: Application, tmp_path: Path
) -> None:
    good = [image("circle", "blue"), text("what is it?")]
    film = [clip(tmp_path), text("what happens?")]
    expected = answer(client, *good), answer(client, *film)
    with ThreadPoolExecutor(12) as pool:
        bad = [pool.submit(post, running, BAD[n][0]) for n in ("cut image", "image as video") * 3]
        fine = [pool.submit(answer, client, *good) for _ in range(3)]
        films = [pool.submit(answer, client, *film) for _ in range(2)]
        assert [job.result().status_code for job in bad] == [400] * 6
        assert {job.result() for job in fine} == {expected[0]}
        assert {job.result() for job in films} == {expected[1]}
