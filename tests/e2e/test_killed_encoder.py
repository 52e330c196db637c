"""An encoder that is killed under load: every request is answered, by a retry on its successor."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI

from bench.application import Application
from tests.e2e.media import image, text
from tests.e2e.test_chat import answer
from tests.e2e.test_storm import body, stats_of, wait_until_idle

pytestmark = pytest.mark.engine


def test_no_request_is_lost_with_its_encoder(client: OpenAI, running: Application) -> None:
    known = [image("circle", "blue", size=(256, 256)), text("what is it?")]
    before = answer(client, *known)

    def ask(number: int) -> tuple[int, Any]:
        picture = image("square", "red", size=(400 + number, 400))
        reply = httpx.post(
            f"{running.url}/v1/chat/completions", json=body(picture, max_tokens=2), timeout=200
        )
        return reply.status_code, reply.text[:200]

    (encoder,) = stats_of(running)["image encoder"]["pids"]
    with ThreadPoolExecutor(12) as pool:
        jobs = [pool.submit(ask, number) for number in range(12)]
        time.sleep(0.5)  # some are being encoded, others wait for their turn
        os.kill(encoder, signal.SIGKILL)
        # What the dead replica had encoded is in the node's store, and needs no encoder.
        assert answer(client, *known) == before
        jobs += [pool.submit(ask, number) for number in range(12, 24)]
        assert [job.result() for job in jobs if job.result()[0] != 200] == []
    assert stats_of(running)["image encoder"]["pids"] != [encoder]
    assert wait_until_idle(running, 10.0) == {}
