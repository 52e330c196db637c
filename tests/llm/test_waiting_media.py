"""Case 61: many chats with pictures wait for a KV pool that admits one of them at a time, and their
rows for a store that holds a few. Nothing that waits keeps anybody from going on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encoders.store import RowsLost, StoreOptions
from llm.deployment import LLMReplica
from tests.llm.chat_client import BODY, Client, content, image, picture_question
from tests.llm.engines import SETTINGS, Engines

pytestmark = pytest.mark.engine

CHATS, ROWS = 16, 100
# Two prompts of two pictures do not fit; a store of five pictures out of 32.
POOL_TOKENS, STORE_BYTES = 384, 5 * (ROWS * 192 * 4 + 4096)


@pytest.fixture(scope="module")
def client(
    engines: Engines, pocket_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    engines.close()
    loop = asyncio.new_event_loop()
    store = StoreOptions(str(tmp_path_factory.mktemp("store") / "omniserve-test"), STORE_BYTES)
    small = {"max_total_tokens": POOL_TOKENS, "swa_full_tokens_ratio": 1.0}
    place = {"model_path": str(pocket_checkpoint), "store": store}

    async def build() -> LLMReplica:
        replica = LLMReplica(SETTINGS | small | {"max_running_requests": 2} | place)
        assert await replica.ready()
        return replica

    yield Client(loop, loop.run_until_complete(build()))
    loop.close()


def test_waiting_chats_pin_nothing(client: Client) -> None:
    store = client.replica._rows.store
    assert store is not None
    question = {"messages": picture_question(0, 1)}
    pictures = [[image(100 + 2 * i, ROWS), image(101 + 2 * i, ROWS)] for i in range(CHATS)]
    refused: list[int] = []

    async def one(number: int) -> Any:
        """As the gateway: rows through the store, and by value when they are gone."""
        kept = [store.put(picture, 1.0) for picture in pictures[number]]
        if not all(kept):
            refused.append(number)
        try:
            return await client.collect(BODY | question, [e for e in kept if e])
        except RowsLost:
            return await client.collect(BODY | question, pictures[number])

    async def all_at_once() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*map(one, range(CHATS))), 120)

    answers = client.loop.run_until_complete(all_at_once())
    assert [head.status for head, _ in answers] == [200] * CHATS
    # Pictures went on being stored while all chats before them waited, and displaced theirs.
    assert refused == []
    assert store.report()["evictions"] >= 2 * CHATS - 5
    report = client.replica._rows.report()
    assert (report["leases"], report["leased_bytes"]) == (0, 0)
    left = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _open(fd)]
    assert not [path for path in left if "(deleted)" in path and "omniserve-test" in path]
    store.check()
    said = {_choices(answer)[0]["message"]["content"] for answer in answers}
    assert len(said) > CHATS // 2
    # Nobody got the answer to somebody else's pictures.
    for number in (0, CHATS // 2, CHATS - 1):
        alone = client.ask(pictures[number], **question)
        assert alone["choices"] == _choices(answers[number])
        assert content(alone)


def _open(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def _choices(answer: Any) -> Any:
    return json.loads(answer[1])["choices"]
