"""An engine that is killed in the middle of an answer: the stream says so, chats are told when to
come again, and its successor answers as it did."""

from __future__ import annotations

import os
import signal
import time

import httpx
import pytest
from openai import APIError, OpenAI

from bench.application import Application
from tests.e2e.media import image, text
from tests.e2e.test_chat import answer
from tests.e2e.test_storm import body, stats_of, wait_until_idle

pytestmark = pytest.mark.engine

# Imports, the engine's start and its warm-up, on a busy machine.
BACK_S = 240.0


def test_chats_outlive_their_engine(client: OpenAI, running: Application) -> None:
    known = [image("circle", "blue", size=(256, 256)), text("what is it?")]
    before = answer(client, *known)
    scheduler = stats_of(running)["language model"]["pids"][0]
    stream = client.chat.completions.create(
        model="mimo-pocket",
        messages=[{"role": "user", "content": "Count from one to nine."}],
        max_tokens=3000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = iter(stream)
    for _ in range(4):
        next(pieces)
    os.kill(scheduler, signal.SIGKILL)
    with pytest.raises(APIError) as failure:
        list(pieces)
    assert "the replica that wrote the answer died" in str(failure.value)

    refused: list[httpx.Response] = []
    deadline = time.monotonic() + BACK_S
    while True:
        reply = httpx.post(
            f"{running.url}/v1/chat/completions",
            json=body(text("hello"), max_tokens=2),
            timeout=BACK_S,
        )
        if reply.status_code == 200:
            break
        refused.append(reply)
        assert time.monotonic() < deadline, reply.text
        time.sleep(1.0)
    assert {reply.status_code for reply in refused} == {503}, [reply.text for reply in refused]
    assert all(float(reply.headers["retry-after"]) > 0 for reply in refused)
    assert answer(client, *known) == before
    assert scheduler not in stats_of(running)["language model"]["pids"]
    assert wait_until_idle(running, 10.0) == {}
