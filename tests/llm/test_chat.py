"""OpenAI chat semantics over a live engine with MTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from encoders.embedding import Embedding, Rows, RowsArray, Special, Text
from encoders.store import RowsLost, RowsRef, StoreOptions
from llm.deployment import LLMReplica
from tests.llm.chat_client import BODY, Client, content, image, picture_question
from tests.llm.engines import SETTINGS, Engines

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def loop() -> Any:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def replica(
    engines: Engines,
    pocket_checkpoint: Path,
    loop: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> LLMReplica:
    """The replica class around the engine that the other tests use."""
    engines.close()
    store = StoreOptions(str(tmp_path_factory.mktemp("store") / "omniserve-test"), 1 << 20)

    async def build() -> LLMReplica:
        settings = SETTINGS | {"model_path": str(pocket_checkpoint), "store": store}
        replica = LLMReplica(settings)
        assert await replica.ready()
        return replica

    return loop.run_until_complete(build())


@pytest.fixture
def client(loop: Any, replica: LLMReplica) -> Client:
    return Client(loop, replica)


# case 95
def test_the_stream_joins_to_the_answer(client: Client) -> None:
    reply = client.ask(max_tokens=40)
    events = client.stream(max_tokens=40, stream_options={"include_usage": True})
    joined = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    assert joined == content(reply)
    assert reply["usage"]["completion_tokens"] == 40
    # case 97: usage comes once, last, without choices.
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 40
    assert reply["choices"][0]["finish_reason"] == "length"


# case 102
def test_a_seed_repeats_alone_and_in_a_batch(client: Client) -> None:
    sampled = {"temperature": 1.0, "top_p": 0.9, "seed": 11}
    alone = content(client.ask(**sampled))
    others = [BODY | {"temperature": 1.0, "seed": s} for s in range(20, 27)]
    replies = client.many(BODY | sampled, *others)
    assert content(json.loads(replies[0][1])) == alone
    assert len({body for _, body in replies}) == 8


def test_several_choices(client: Client) -> None:
    sampled = {"temperature": 1.0, "seed": 5}
    choices = client.ask(n=3, **sampled)["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2]
    texts = [c["message"]["content"] for c in choices]
    assert len(set(texts)) == 3
    assert texts[0] == content(client.ask(**sampled))
    assert texts == [c["message"]["content"] for c in client.ask(n=3, **sampled)["choices"]]
    events = client.stream(n=3)
    assert {c["index"] for e in events for c in e["choices"]} == {0, 1, 2}


def test_pictures_change_the_answer_and_order_matters(client: Client) -> None:
    def answer(*seeds: int, order: tuple[int, ...], **more: Any) -> str:
        reply = client.ask([image(s) for s in seeds], messages=picture_question(*order), **more)
        assert reply["usage"]["prompt_tokens_details"]["image_tokens"] == 9 * len(seeds)
        return content(reply)

    one = answer(1, order=(0,))
    assert one == answer(1, order=(0,))
    assert one != answer(2, order=(0,))
    assert answer(1, 2, order=(0, 1)) != answer(1, 2, order=(1, 0))
    assert answer(1, 2, order=(0, 1)) == answer(2, 1, order=(1, 0))
    assert answer(1, 2, order=(0, 1), n=2) == answer(1, 2, order=(0, 1))


def test_json_schema_holds_under_mtp(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"enum": [1, 2]}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = json.loads(
        content(client.ask(response_format=wanted, max_tokens=400, ignore_eos=False))
    )
    assert answer["colour"] in ("red", "blue")
    assert answer["count"] in (1, 2)


def test_logprobs_and_stop(client: Client) -> None:
    reply = client.ask(logprobs=True, top_logprobs=2, max_tokens=5)
    entries = reply["choices"][0]["logprobs"]["content"]
    assert len(entries) == 5
    assert all(e["logprob"] == e["top_logprobs"][0]["logprob"] for e in entries)
    whole = content(client.ask(max_tokens=30))
    stop = next(c for c in whole[3:] if c.isalnum())
    cut = client.ask(max_tokens=30, stop=[stop])
    assert content(cut) == whole[: whole.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": "hot" * 3000}, "temperature"),
        ({"messages": []}, "Messages"),
        ({"max_tokens": -5}, "max"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": "word " * 6000}]}, "context length"),
        ({"top_p": 7}, "top_p"),
        ({"input_ids": [1, 2]}, "input_ids"),
        ({"bootstrap_host": "10.0.0.1"}, "bootstrap_host"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template"),
    ],
)
def test_bad_requests_are_named_and_not_echoed(
    client: Client, changes: dict[str, Any], words: str
) -> None:
    status, error = client.fail(**changes)
    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert "hothot" not in error["message"]


# case 35
def test_a_broken_embedding_fails_alone(client: Client) -> None:
    async def short() -> RowsArray:
        rows = image(1, n=8).rows
        assert isinstance(rows, RowsArray)
        return rows

    # By reference, as from an encoder replica: nobody has compared rows and layout yet.
    broken = Embedding("image", "0" * 64, image(1).layout, short())
    status, error = client.fail([broken], messages=picture_question(0))
    assert status == 500
    assert "8 embedding rows for 9 positions" in error["message"]
    assert content(client.ask())


def test_rows_by_reference_answer_as_rows_by_value(client: Client) -> None:
    store = client.replica._rows.store
    assert store is not None
    layout = (
        Special("<|mimo_video_start|>"),
        *(Text("00:00"), Special("<|vision_start|>"), Rows("video", 4), Special("<|vision_end|>")),
        *(Special("<|mimo_audio_start|>"), Rows("audio", 2), Special("<|mimo_audio_end|>")),
        *(Text("00:01"), Special("<|vision_start|>"), Rows("video", 4), Special("<|vision_end|>")),
        Special("<|mimo_video_end|>"),
    )
    clip = Embedding("video", "c" * 64, layout, image(40, n=10).rows)
    question = {"messages": picture_question(0, 1), "logprobs": True, "max_tokens": 4}
    for more in ({"n": 2}, {}):
        by_value = client.ask([image(41), clip], **question, **more)
        # Other digests: the prefix cache must not answer.
        renamed = [replace(e, digest=e.digest[::-1][:-1] + "7") for e in (image(41), clip)]
        kept = [store.put(e, 1.0) for e in renamed]
        assert all(isinstance(e.rows, RowsRef) for e in kept if e)
        by_reference = client.ask([e for e in kept if e], **question, **more)
        if more:  # by chance choices share a pass or not: the output head then sums by other rows
            assert _logprobs(by_reference) == pytest.approx(_logprobs(by_value), abs=1e-5)
        assert by_reference["choices"] == by_value["choices"]
    assert client.ask([image(42), clip], **question)["choices"] != by_value["choices"][:1]
    report = client.replica._rows.report()
    assert (report["leases"], report["leased_bytes"]) == (0, 0)


def _logprobs(reply: Any) -> list[float]:
    """Takes the log-probabilities out of a reply's choices."""
    entries = [e for choice in reply["choices"] for e in choice["logprobs"]["content"]]
    return [entry.pop("logprob") for entry in entries]


def test_rows_that_were_evicted_are_asked_for_again(client: Client) -> None:
    store = client.replica._rows.store
    assert store is not None
    kept = store.put(image(43), 1.0)
    assert kept is not None
    Path(kept.rows.path).unlink()
    with pytest.raises(RowsLost):
        client.ask([kept], messages=picture_question(0))
    assert client.replica._rows.report()["leases"] == 0
    assert content(client.ask())


# case 97
def test_leaving_early_frees_the_engine(client: Client) -> None:
    async def leave(choices: int) -> int:
        body = BODY | {"stream": True, "max_tokens": 2000, "n": choices}
        stream: AsyncIterator[Any] = client.replica.chat(body)
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 4:
                break
        await stream.aclose()  # type: ignore[attr-defined]
        state = client.replica._engine.tokenizer_manager.rid_to_state
        for _ in range(100):
            if not state:
                break
            await asyncio.sleep(0.05)
        return len(state)

    assert client.loop.run_until_complete(leave(1)) == 0
    assert client.loop.run_until_complete(leave(3)) == 0
    assert client.loop.run_until_complete(client.replica.ready())


def test_min_p_and_penalties_with_seeds(client: Client) -> None:
    sampled = {"temperature": 1.0, "seed": 3, "frequency_penalty": 0.5}
    assert content(client.ask(min_p=0.9, **sampled)) == content(client.ask(min_p=0.9, **sampled))
    assert client.ask(min_p=0.99, temperature=1.0, top_k=5)
