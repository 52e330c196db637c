"""One attention rank of an engine: waiting queue, chunked prefill, batched decode, KV tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from tools.replay.cache import Changes, DevicePool, Tier
from tools.replay.cost import pairs
from tools.replay.geometry import Geometry, Pools
from tools.replay.request import Request
from tools.replay.tiers import host_tier


@dataclass(frozen=True)
class Limits:
    """What the engine is configured with. ``chunk``: tokens of a prefill pass. ``decodes``: False
    for a prefill replica, which hands a request over at its first token. ``dense_every`` and
    ``dense_until``: also keep windows at every so many tokens of a prompt's first so many (0: only
    at the ends of chunks and prompts, and where prompts were seen to branch)."""

    chunk: int = 16384
    max_running: int = 128
    decodes: bool = True
    dense_every: int = 0
    dense_until: int = 32768

    @property
    def tails(self) -> Sequence[int]:
        """Positions of the windows that are kept densely."""
        every = self.dense_every
        return range(every, self.dense_until + 1, every) if every else ()


class Queue(Protocol):
    """The order of waiting requests, with the state that it needs. ``limit``: how many tokens of
    a pass a long prefill in progress may have."""

    def join(self, request: Request, replica: Replica) -> None: ...
    def order(self, replica: Replica, now: float) -> list[Request]: ...
    def limit(self, partial: Request, replica: Replica, budget: int) -> int: ...
    def started(self, request: Request) -> None: ...
    def prefilled(self, request: Request) -> None: ...


class Log(Protocol):
    """Who is told what happens to requests."""

    def started(self, request: Request, now: float, host: int, store: int) -> None: ...
    def computed(self, request: Request, replica: int, tokens: int) -> None: ...
    def first_token(self, request: Request, now: float) -> None: ...
    def finished(self, request: Request, replica: int, now: float) -> None: ...


class Replica:
    """State of one rank. Its group decides when passes start and end."""

    __slots__ = (
        "accept",
        "batch",
        "changes",
        "context",
        "decoding",
        "device",
        "geometry",
        "host",
        "index",
        "limits",
        "load_bytes",
        "log",
        "partial",
        "passes",
        "processed",
        "queue",
        "running",
        "store",
        "waiting",
    )

    def __init__(
        self,
        index: int,
        geometry: Geometry,
        pools: Pools,
        block_tokens: int,
        limits: Limits,
        accept: float,
        queue: Queue,
        log: Log,
        store: Tier | None,
        reports: bool,
    ) -> None:
        self.index = index
        self.geometry = geometry
        self.limits = limits
        self.accept = accept
        self.queue = queue
        self.log = log
        self.store = store
        self.changes: Changes | None = {} if reports else None
        self.device = DevicePool(pools.full_tokens, block_tokens, pools.windows, self.changes)
        self.host = host_tier(geometry, pools, block_tokens, self.changes)
        self.waiting: dict[int, Request] = {}
        self.partial: Request | None = None
        self.batch: list[tuple[Request, int]] = []
        self.running: dict[int, Request] = {}
        # Requests in decode by the pass after which they are done.
        self.decoding: list[tuple[int, int]] = []
        self.passes = 0
        self.context = 0.0
        self.processed = 0
        self.load_bytes = (0.0, 0.0)

    def enqueue(self, request: Request, now: float) -> None:
        """A request arrives at this replica. Raises ValueError when it can never fit."""
        blocks = len(request.path) * self.device.block_tokens
        if blocks + self._answer(request) > self.device.capacity:
            raise ValueError(
                f"a request of {request.tokens} + {request.output} tokens does not fit a pool of "
                f"{self.device.capacity}"
            )
        request.queued = now
        request.joined = self.processed
        self.waiting[request.index] = request
        self.queue.join(request, self)

    def match(self, path: list[int]) -> tuple[int, int, int, int]:
        """Blocks of ``path`` on the device, down to the host, down to the store, and usable."""
        device = self.device.depth(path)
        host = device if self.host is None else self.host.depth(path, device)
        store = host if self.store is None else self.store.depth(path, host)
        if not self.geometry.window_layers:
            return device, host, store, store
        usable = store
        while usable and not self._window(path[usable - 1]):
            usable -= 1
        return device, host, store, usable

    def uncached(self, request: Request) -> int:
        """Tokens of a waiting request that would be computed if it started now; at least one."""
        usable = self.match(request.path)[3]
        return request.tokens - min(usable * self.device.block_tokens, request.tokens - 1)

    def form(self, now: float) -> None:
        """Choose the next prefill pass: the chunk in progress, then waiting requests in order."""
        batch = self.batch = []
        self.load_bytes = (0.0, 0.0)
        budget = self.limits.chunk
        if self.partial is not None:
            room = budget
            if self.waiting and len(self.running) < self.limits.max_running:
                room = self.queue.limit(self.partial, self, budget)
            new = min(self.partial.tokens - self.partial.done, room)
            batch.append((self.partial, new))
            budget -= new
        if not self.waiting or budget <= 0 or len(self.running) >= self.limits.max_running:
            return
        # Only one request at a time is in the middle of its prompt.
        whole = self.partial is not None and batch[0][1] < self.partial.tokens - self.partial.done
        for request in self.queue.order(self, now):
            if whole and self.uncached(request) > budget:
                break
            if not self._admit(request, now):
                break
            new = min(request.tokens - request.done, budget)
            batch.append((request, new))
            budget -= new
            if budget <= 0 or len(self.running) >= self.limits.max_running:
                break

    def work(self) -> tuple[int, float]:
        """New tokens and attention pairs of the pass that was formed."""
        tokens, total = 0, 0.0
        for request, new in self.batch:
            tokens += new
            total += pairs(new, request.done)
        return tokens, total

    def commit(self, now: float) -> None:
        """The prefill pass has run: its KV is there, finished prompts have their first token."""
        self.partial = None
        size = self.device.block_tokens
        tokens = 0
        for request, new in self.batch:
            tokens += new
            request.done += new
            self.log.computed(request, self.index, new)
            ready = request.done == request.tokens
            complete = len(request.path) if ready else request.done // size
            self.device.insert(request.path[request.depth : complete])
            request.depth = complete
            if self.geometry.window_layers:
                self._keep_windows(request, ready)
            if ready:
                self._prefilled(request, now)
            else:
                self.partial = request
        self.processed += tokens
        self.batch = []

    def advance(self, passes: int, now: float) -> None:
        """Decode passes have run; requests whose last token came are done."""
        self.passes += passes
        self.context += passes * self.accept * len(self.decoding)
        while self.decoding and self.decoding[0][0] <= self.passes:
            _, index = heappop(self.decoding)
            request = self.running[index]
            self.context -= request.tokens + self._passes_of(request) * self.accept
            self._finish(request, now)
        if not self.decoding:
            self.context = 0.0

    def passes_left(self) -> int:
        """Decode passes until the next request is done."""
        return self.decoding[0][0] - self.passes

    def check(self) -> None:
        """Raises AssertionError when the state is not consistent."""
        locked: dict[int, int] = {}
        for request in self.running.values():
            for block in request.path[: request.depth]:
                locked[block] = locked.get(block, 0) + 1
            assert request.hit <= request.done <= request.tokens
        self.device.check(locked)
        size = self.device.block_tokens
        reserved = sum(
            (len(r.path) - r.depth) * size + self._answer(r) for r in self.running.values()
        )
        assert reserved == self.device.reserved, f"{self.device.reserved} != {reserved} reserved"
        assert not self.waiting.keys() & self.running.keys(), "waiting and running at once"
        assert len(self.running) <= self.limits.max_running, "more requests run than may"

    def _window(self, block: int) -> bool:
        return (
            block in self.device.windows
            or (self.host is not None and block in self.host.windows)
            or (self.store is not None and block in self.store.windows)
        )

    def _admit(self, request: Request, now: float) -> bool:
        """Take device memory for a request and its answer; False when there is not enough."""
        path, size = request.path, self.device.block_tokens
        device, host, _, usable = self.match(path)
        here = min(usable, device)
        need = (len(path) - here) * size + self._answer(request)
        self.device.lock(path[:here])
        if need > self.device.available_tokens:
            self.device.unlock(path[:here])
            return False
        self.device.reserve(need)
        self.device.insert(path[here:usable])
        request.depth = usable
        request.hit = request.done = min(usable * size, request.tokens - 1)
        request.branch = device if device > usable else 0
        from_host = max(0, min(usable, host) - here)
        from_store = usable - max(here, min(usable, host))
        loaded = self.geometry.full_bytes * size
        window = self.geometry.window_bytes * self.geometry.window
        self.load_bytes = (
            self.load_bytes[0] + (from_host * loaded + window if from_host else 0.0),
            self.load_bytes[1] + (from_store * loaded + window if from_store else 0.0),
        )
        if self.geometry.window_layers and usable:
            self.device.windows.add(path[usable - 1])
        if self.store is not None and usable:
            # Touched where it lives longest, or a prefix that is always hit above ages out below.
            self.store.write(path[:usable])
        del self.waiting[request.index]
        self.running[request.index] = request
        self.queue.started(request)
        self.log.started(request, now, from_host * size, from_store * size)
        return True

    def _keep_windows(self, request: Request, ready: bool) -> None:
        size, limits = self.device.block_tokens, self.limits
        ends = [request.done // size]
        if ready and request.branch:
            ends.append(request.branch)
        if ready:
            tails = limits.tails
            ends.extend(tail // size for tail in tails if request.hit < tail <= request.tokens)
        for end in ends:
            if end:
                self.device.windows.add(request.path[end - 1])
                if self.host is not None:
                    self.host.windows.add(request.path[end - 1])
                if self.store is not None:
                    self.store.windows.add(request.path[end - 1])

    def _prefilled(self, request: Request, now: float) -> None:
        if self.host is not None:
            self.host.write(request.path)
        if self.store is not None:
            self.store.write(request.path)
        self.log.first_token(request, now)
        self.queue.prefilled(request)
        if request.output <= 1 or not self.limits.decodes:
            self._finish(request, now)
            return
        heappush(self.decoding, (self.passes + self._passes_of(request), request.index))
        self.context += request.tokens

    def _answer(self, request: Request) -> int:
        """Tokens of device memory set aside for what the request will generate."""
        return request.output if self.limits.decodes else 0

    def _passes_of(self, request: Request) -> int:
        return -int(-(request.output - 1) // self.accept)

    def _finish(self, request: Request, now: float) -> None:
        self.device.unlock(request.path[: request.depth])
        self.device.release(self._answer(request))
        del self.running[request.index]
        self.log.finished(request, self.index, now)
