"""Pairs of engines over a loopback transfer: answers, failures of each side, and who frees what."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import pytest

from llm.disaggregation.pair import HandoverFailed, answer
from llm.disaggregation.rooms import Handoff, Rooms
from llm.reply import ReplyHead
from tests.llm.disaggregation.loopback import (
    HEAD,
    DecodeEngine,
    Loopback,
    PrefillEngine,
    pages_of,
)

TOKENS = 22  # 6 pages of the full layers, 2 of the SWA layers


class Pair:
    """Two engines and the rooms between them."""

    def __init__(
        self,
        mode: str = "works",
        prefill_fails: str | None = None,
        decode_fails: str | None = None,
        host: bool = False,
        timeout_s: float = 5.0,
    ) -> None:
        self.loopback = Loopback(mode)
        self.prefill = PrefillEngine(self.loopback, prefill_fails)
        self.decode = DecodeEngine(self.loopback, decode_fails, host)
        self.rooms = Rooms("host", 8998, timeout_s)

    def ask(self) -> AsyncGenerator[ReplyHead | bytes, None]:
        return answer(
            self.rooms,
            partial(self.prefill.generate, tokens=TOKENS),
            partial(self.decode.generate, tokens=TOKENS),
        )

    def at_rest(self) -> None:
        """Nothing is held on either side."""
        assert self.prefill.used == self.decode.used == (0, 0, 0)
        assert (self.prefill.stage, self.decode.stage) == ("idle", "idle")
        assert not self.loopback.senders
        assert not self.loopback.receivers
        assert len(self.rooms) == 0
        self.rooms.check(0.0)


async def read(pieces: AsyncGenerator[ReplyHead | bytes, None]) -> list[Any]:
    return [piece async for piece in pieces]


async def test_the_decode_side_answers_with_the_kv_of_the_prefill_side() -> None:
    pair = Pair()
    assert await read(pair.ask()) == [HEAD, b"0", b"1", b"2"]
    assert pair.decode.received == [[*range(100, 106), 204, 205]]
    pair.at_rest()


async def test_only_the_last_window_of_swa_layers_is_sent_and_reserved() -> None:
    pair = Pair()
    await read(pair.ask())
    assert pair.loopback.sent_pages == [(6, 2)]
    assert (pair.decode.full.most, pair.decode.swa.most) == (6, 2)
    assert pages_of(4) == (1, 1)
    assert pages_of(1000) == (250, 2)


async def test_kv_waits_in_host_memory_until_decode_starts() -> None:
    pair = Pair(host=True)
    await read(pair.ask())
    assert pair.decode.device_before == [0]
    assert pair.decode.host.most == 8
    assert pair.decode.received == [[*range(100, 106), 204, 205]]
    pair.at_rest()


async def test_many_at_once() -> None:
    pair = Pair()
    replies = await asyncio.gather(*(read(pair.ask()) for _ in range(8)))
    assert replies == [[HEAD, b"0", b"1", b"2"]] * 8
    pair.at_rest()


@pytest.mark.parametrize("stage", ["queued", "computing", "transferring"])
@pytest.mark.parametrize("host", [False, True])
async def test_a_failure_of_the_prefill_side_frees_both(stage: str, host: bool) -> None:
    pair = Pair(prefill_fails=stage, host=host)
    with pytest.raises(RuntimeError, match=f"failed while {stage}"):
        await read(pair.ask())
    pair.at_rest()


@pytest.mark.parametrize("stage", ["bootstrapping", "receiving", "decoding"])
@pytest.mark.parametrize("host", [False, True])
async def test_a_failure_of_the_decode_side_frees_both(stage: str, host: bool) -> None:
    pair = Pair(decode_fails=stage, host=host)
    with pytest.raises(RuntimeError, match=f"failed while {stage}"):
        await read(pair.ask())
    pair.at_rest()


async def test_a_failed_transfer_frees_both() -> None:
    pair = Pair(mode="fails")
    with pytest.raises(RuntimeError, match="the transfer failed"):
        await read(pair.ask())
    pair.at_rest()


@pytest.mark.parametrize("host", [False, True])
async def test_case_83_a_transfer_that_never_completes_ends_at_its_deadline(host: bool) -> None:
    pair = Pair(mode="never", host=host, timeout_s=0.05)
    with pytest.raises(HandoverFailed, match="before the handover's deadline"):
        await read(pair.ask())
    pair.at_rest()
    # What completes late finds nobody: no page is written after it was freed.
    pair.loopback.mode = "works"
    assert not pair.loopback.copy(next(iter([1])))
    assert await read(pair.ask()) == [HEAD, b"0", b"1", b"2"]
    pair.at_rest()


STAGES = ["queued", "computing", "transferring", "bootstrapping", "receiving", "decoding"]


@pytest.mark.parametrize("stage", STAGES)
async def test_case_85_a_client_that_leaves_at_any_stage_frees_both(stage: str) -> None:
    pair = Pair()
    engine = pair.prefill if stage in STAGES[:3] else pair.decode
    task = asyncio.create_task(read(pair.ask()))
    while engine.stage != stage:
        engine.moved.clear()
        await engine.moved.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pair.at_rest()
    assert await read(pair.ask()) == [HEAD, b"0", b"1", b"2"]


async def test_case_84_and_87_a_thousand_aborts_leak_nothing() -> None:
    chance = random.Random(7)
    for host in (False, True):
        pair = Pair(host=host)
        for _ in range(500):
            tasks = [asyncio.create_task(read(pair.ask())) for _ in range(2)]
            for _ in range(chance.randrange(25)):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            pair.at_rest()
        assert await read(pair.ask()) == [HEAD, b"0", b"1", b"2"]


async def test_a_request_that_the_prefill_side_refuses_is_refused() -> None:
    pair = Pair()

    async def refuse(handoff: Handoff) -> AsyncGenerator[ReplyHead | bytes, None]:
        yield ReplyHead(400, "application/json")
        yield b'{"error": {}}'

    pieces = answer(pair.rooms, refuse, partial(pair.decode.generate, tokens=TOKENS))
    found = [piece for piece in await read(pieces) if piece != HEAD]
    assert found == [ReplyHead(400, "application/json"), b'{"error": {}}']
    pair.at_rest()


def test_rooms_are_unique_and_closed_once() -> None:
    numbers = iter([5, 5, 5, 9])
    rooms = Rooms("10.0.0.1", 4000, 10.0, lambda bits: next(numbers))
    first, second = rooms.open(0.0), rooms.open(1.0)
    assert (first.room, second.room) == (5, 9)
    assert first.fields() == {
        "bootstrap_host": "10.0.0.1",
        "bootstrap_port": 4000,
        "bootstrap_room": 5,
    }
    assert (rooms.left(5, 4.0), rooms.left(5, 99.0), rooms.left(77, 0.0)) == (6.0, 0.0, 0.0)
    assert rooms.close(5)
    assert not rooms.close(5)
    rooms.check(20.0)
    with pytest.raises(AssertionError, match="room 9 is open 89 s too long"):
        rooms.check(100.0)
