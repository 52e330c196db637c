"""Two engines in one process, joined by a loopback transfer with SGLang's sender and receiver.

Pools are arrays of pages, so that what arrives can be compared with what was computed, and every
page is allocated and freed by name, so that nothing can leak or be freed twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
from sglang.srt.disaggregation.base.conn import BaseKVReceiver, BaseKVSender, KVPoll

from llm.disaggregation.rooms import Handoff
from llm.reply import ReplyHead

PAGE, WINDOW = 4, 6
HEAD = ReplyHead(200, "text/event-stream")


class Pool:
    """`count` pages of one number each."""

    def __init__(self, count: int) -> None:
        self.pages = np.zeros(count, np.int64)
        self._free = list(range(count))
        self._used: set[int] = set()
        self.most = 0

    @property
    def used(self) -> int:
        return len(self._used)

    def alloc(self, count: int) -> list[int]:
        assert count <= len(self._free), "the pool is full"
        taken, self._free = self._free[:count], self._free[count:]
        self._used |= set(taken)
        self.most = max(self.most, self.used)
        return taken

    def free(self, pages: list[int]) -> None:
        assert self._used.issuperset(pages), "freed twice"
        self._used -= set(pages)
        self._free += pages
        self.pages[pages] = -1


class Loopback:
    """Rooms where senders and receivers meet; `mode`: "works", "never" completes, or "fails"."""

    def __init__(self, mode: str = "works") -> None:
        self.mode = mode
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        self.sent_pages: list[tuple[int, int]] = []

    def copy(self, room: int) -> bool:
        """Copy when both ends are there; a room that was left is never written into."""
        sender, receiver = self.senders.get(room), self.receivers.get(room)
        if self.mode != "works" or sender is None or receiver is None:
            return False
        if sender.pages is None or receiver.pages is None:
            return False
        for (source, theirs), (target, ours) in zip(sender.pages, receiver.pages, strict=True):
            target.pages[ours] = source.pages[theirs]
        self.sent_pages.append((len(sender.pages[0][1]), len(sender.pages[1][1])))
        return True


class Sender(BaseKVSender):
    """The prefill end of a room."""

    def __init__(self, mgr: Loopback, bootstrap_addr: str, bootstrap_room: int, *_: Any) -> None:
        self._loopback, self._room = mgr, bootstrap_room
        self.pages: list[tuple[Pool, list[int]]] | None = None
        mgr.senders[bootstrap_room] = self

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None: ...

    def send(self, kv_indices: Any, state_indices: Any = None, num_kv_tokens: Any = None) -> None:
        self.pages = [kv_indices, state_indices]

    def poll(self) -> int:
        if self._loopback.mode == "fails":
            return KVPoll.Failed
        receiver = self._loopback.receivers.get(self._room)
        return KVPoll.Success if receiver is not None and receiver.done else KVPoll.Transferring

    def failure_exception(self) -> None:
        raise RuntimeError("the transfer failed")

    def get_transfer_metric(self) -> Any: ...

    def abort(self) -> None:
        self._loopback.senders.pop(self._room, None)


class Receiver(BaseKVReceiver):
    """The decode end of a room."""

    def __init__(self, mgr: Loopback, bootstrap_addr: str, bootstrap_room: int) -> None:
        self._loopback, self._room = mgr, bootstrap_room
        self.pages: list[tuple[Pool, list[int]]] | None = None
        self.done = False
        mgr.receivers[bootstrap_room] = self

    def init(self, prefill_dp_rank: int) -> None: ...

    def send_metadata(self, kv_indices: Any, *_: Any, state_indices: Any = None) -> None:
        self.pages = [kv_indices, state_indices]

    def prefill_complete(self) -> bool:
        sender = self._loopback.senders.get(self._room)
        return sender is not None and sender.pages is not None

    def poll(self) -> int:
        if self._loopback.mode == "fails":
            return KVPoll.Failed
        self.done = self.done or self._loopback.copy(self._room)
        return KVPoll.Success if self.done else KVPoll.Transferring

    def failure_exception(self) -> None:
        raise RuntimeError("the transfer failed")

    def abort(self) -> None:
        self._loopback.receivers.pop(self._room, None)


class Engine:
    """What both sides have: pools for full and SWA layers; `fail_at` names a stage that fails."""

    def __init__(self, loopback: Loopback, fail_at: str | None = None) -> None:
        self.loopback, self.fail_at = loopback, fail_at
        self.full, self.swa, self.host = Pool(64), Pool(64), Pool(64)
        self.stage = "idle"
        self.moved = asyncio.Event()

    async def at(self, stage: str, steps: int = 2) -> None:
        self.stage = stage
        self.moved.set()
        if stage == self.fail_at:
            raise RuntimeError(f"failed while {stage}")
        for _ in range(steps):
            await asyncio.sleep(0)

    async def until(self, end: Sender | Receiver) -> None:
        while (status := end.poll()) != KVPoll.Success:
            if status == KVPoll.Failed:
                end.failure_exception()
            await asyncio.sleep(0.001)

    async def computed(self, receiver: Receiver) -> None:
        # Polled, as SGLang's engine does.
        while True:
            if receiver.prefill_complete():
                return
            await asyncio.sleep(0.001)

    @property
    def used(self) -> tuple[int, int, int]:
        return self.full.used, self.swa.used, self.host.used


def pages_of(tokens: int) -> tuple[int, int]:
    """Pages of the full layers and, for the last window only, of the SWA layers."""
    first = max(0, tokens - WINDOW) // PAGE
    return -(-tokens // PAGE), -(-tokens // PAGE) - first


class PrefillEngine(Engine):
    """Computes `tokens`: page i of the sequence gets 100 + i."""

    async def generate(self, handoff: Handoff, tokens: int) -> AsyncGenerator[Any, None]:
        full: list[int] = []
        swa: list[int] = []
        sender = None
        try:
            await self.at("queued")
            sender = Sender(self.loopback, handoff.host, handoff.room)
            count, tail = pages_of(tokens)
            full, swa = self.full.alloc(count), self.swa.alloc(tail)
            await self.at("computing", 5)
            self.full.pages[full] = 100 + np.arange(count)
            self.swa.pages[swa] = 200 + np.arange(count - tail, count)
            sender.send((self.full, full), (self.swa, swa))
            await self.at("transferring")
            await self.until(sender)
            yield HEAD
            yield b"first"
        finally:
            if sender is not None:
                sender.abort()
            self.full.free(full)
            self.swa.free(swa)
            self.stage = "idle"


class DecodeEngine(Engine):
    """Receives into `host` memory, or on the device once the prompt is computed; then decodes."""

    def __init__(self, loopback: Loopback, fail_at: str | None = None, host: bool = False) -> None:
        super().__init__(loopback, fail_at)
        self.to_host = host
        self.received: list[list[int]] = []
        self.device_before: list[int] = []

    async def generate(self, handoff: Handoff, tokens: int) -> AsyncGenerator[Any, None]:
        held: list[tuple[Pool, list[int]]] = []
        receiver = Receiver(self.loopback, handoff.host, handoff.room)
        try:
            await self.at("bootstrapping")
            yield HEAD
            count, tail = pages_of(tokens)
            if self.to_host:
                held = [(self.host, self.host.alloc(count)), (self.host, self.host.alloc(tail))]
            else:
                await self.computed(receiver)
                held = [(self.full, self.full.alloc(count)), (self.swa, self.swa.alloc(tail))]
            receiver.send_metadata(held[0], state_indices=held[1])
            await self.at("receiving")
            await self.until(receiver)
            if self.to_host:
                self.device_before.append(self.full.used + self.swa.used)
                moved = [(self.full, self.full.alloc(count)), (self.swa, self.swa.alloc(tail))]
                for (source, theirs), (target, ours) in zip(held, moved, strict=True):
                    target.pages[ours] = source.pages[theirs]
                    source.free(theirs)
                held = moved
            self.received.append([int(n) for pool, pages in held for n in pool.pages[pages]])
            for number in range(3):
                await self.at("decoding")
                yield str(number).encode()
        finally:
            receiver.abort()
            for pool, pages in held:
                pool.free(pages)
            self.stage = "idle"
