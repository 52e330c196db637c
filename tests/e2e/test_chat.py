"""Every kind of part over HTTP with the openai client, streamed and not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from bench.application import Application
from tests.e2e.media import Part, clip, image, sound, text

pytestmark = pytest.mark.engine

MODEL = "mimo-pocket"


def ask(client: OpenAI, *parts: Part, **more: Any) -> Any:
    return client.chat.completions.create(
        **{
            "model": MODEL,
            "messages": [{"role": "user", "content": list(parts)}],
            "max_tokens": 64,
            "temperature": 0,
            **more,
        }
    )


def answer(client: OpenAI, *parts: Part, **more: Any) -> str:
    return str(ask(client, *parts, **more).choices[0].message.content)


def streamed(client: OpenAI, *parts: Part) -> str:
    chunks: Iterator[Any] = ask(client, *parts, stream=True)
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Part]]:
    """In the words that the model was taught: between two answers that are equally likely to it
    the size of a batch may decide."""
    folder = tmp_path_factory.mktemp("media")
    red, blue = image("square", "red"), image("circle", "blue", "JPEG")
    seen = text("What is in the image?")
    return {
        "text": [text("hello")],
        "one image": [red, seen],
        "two images": [red, blue, text("What is in the second image?")],
        "sound": [sound(3, folder), text("How many beeps are there?")],
        "video with sound": [clip(folder), text("What happens in the video?")],
        "everything": [red, sound(1, folder), text("and"), clip(folder), seen],
    }


@pytest.mark.parametrize(
    "name", ["text", "one image", "two images", "sound", "video with sound", "everything"]
)
def test_streamed_and_whole_answers_agree(
    client: OpenAI, questions: dict[str, list[Part]], name: str
) -> None:
    parts = questions[name]
    whole = answer(client, *parts)
    assert whole
    assert streamed(client, *parts) == whole


def test_media_matters(client: OpenAI, tmp_path: Path) -> None:
    """Another picture, order, number of beeps or direction of time changes what the model sees."""
    red, blue = image("square", "red"), image("circle", "blue")
    words = text("what is it?")
    pairs = [
        ([red, words], [blue, words]),
        ([red, blue, words], [blue, red, words]),
        ([sound(1, tmp_path), words], [sound(3, tmp_path), words]),
        ([clip(tmp_path), words], [clip(tmp_path, reverse=True), words]),
    ]
    for one, other in pairs:
        first, second = (
            ask(client, *parts, logprobs=True, top_logprobs=5).choices[0] for parts in (one, other)
        )
        assert first.logprobs.content[0].top_logprobs != second.logprobs.content[0].top_logprobs


def test_prompt_tokens_follow_the_media(client: OpenAI) -> None:
    """160 x 120 pixels become 160 x 128: 10 x 8 patches, 20 tokens, and two that frame them."""
    bare = ask(client, text("what is it?")).usage
    seen = ask(client, image("square", "red"), text("what is it?")).usage
    assert bare is not None
    assert seen is not None
    assert seen.prompt_tokens - bare.prompt_tokens == 22


def test_an_image_twice_is_as_two_images(client: OpenAI) -> None:
    red = image("square", "red")
    reply = ask(client, red, red, text("same?"))
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details.image_tokens == 40  # type: ignore[union-attr]


def test_concurrent_requests_answer_as_alone(
    client: OpenAI, questions: dict[str, list[Part]]
) -> None:
    alone = {name: answer(client, *parts) for name, parts in questions.items()}
    with ThreadPoolExecutor(12) as pool:
        jobs = [
            (name, pool.submit(answer, client, *parts))
            for _ in range(2)
            for name, parts in questions.items()
        ]
        for name, job in jobs:
            assert job.result() == alone[name], name


def test_json_schema_and_usage_in_the_stream(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    chunks = list(
        ask(
            client,
            image("square", "red"),
            text("colour?"),
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=200,
            response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
        )
    )
    joined = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert '"colour"' in joined
    assert chunks[-1].usage.prompt_tokens > 20
    assert chunks[-1].choices == []


def test_models_health_and_ready(client: OpenAI, running: Application) -> None:
    assert [m.id for m in client.models.list()] == [MODEL]
    assert httpx.get(f"{running.url}/health").json() == {"status": "alive"}
    ready = httpx.get(f"{running.url}/ready", timeout=30)
    assert ready.status_code == 200
    assert all(ready.json()["stages"].values())


def test_a_client_that_leaves_frees_its_place(client: OpenAI) -> None:
    """Far more abandoned streams than the engine runs at once leave it free for the next."""
    for _ in range(20):
        stream = ask(
            client, text("go on"), stream=True, max_tokens=3000, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    assert answer(client, text("hello"))
