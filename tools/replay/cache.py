"""Prefix blocks that a replica holds, in device memory and below it, least recently used out first.

A block is only usable as the end of a hit where the window that ends there still exists. Both
pools are kept: *blocks* (KV of the full-attention layers) and *windows* (KV of the sliding-window
layers of the last tokens before the end of a block). Without a window model every block is usable.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

# Blocks whose state changed since the last report, in order; values are not used.
Changes = dict[int, None]


class Windows:
    """Ends of blocks at which the sliding window still exists; ``capacity`` of them."""

    __slots__ = ("_order", "capacity", "changes")

    def __init__(self, capacity: int, changes: Changes | None = None) -> None:
        self.capacity = capacity
        self.changes = changes
        self._order: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._order

    def __len__(self) -> int:
        return len(self._order)

    def add(self, block: int) -> None:
        """Keep the window that ends with ``block``; the one least recently used may go."""
        if block in self._order:
            self._order.move_to_end(block)
            return
        if not self.capacity:
            return
        self._order[block] = None
        if self.changes is not None:
            self.changes[block] = None
        if len(self._order) > self.capacity:
            gone, _ = self._order.popitem(last=False)
            if self.changes is not None:
                self.changes[gone] = None

    def discard(self, block: int) -> None:
        self._order.pop(block, None)


class DevicePool:
    """Device memory of one replica: prefix blocks with locks, and tokens reserved by requests.

    Idle blocks are in order of use, and a block is never older than one that follows it in a
    prompt, so that evicting the oldest never takes a block from under another.
    """

    __slots__ = ("_idle", "_locks", "block_tokens", "capacity", "changes", "reserved", "windows")

    def __init__(
        self, capacity: int, block_tokens: int, windows: int, changes: Changes | None = None
    ) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self.reserved = 0
        self.changes = changes
        self.windows = Windows(windows, changes)
        self._locks: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._locks

    def __len__(self) -> int:
        return len(self._locks)

    @property
    def free_tokens(self) -> int:
        return self.capacity - self.reserved - len(self._locks) * self.block_tokens

    @property
    def available_tokens(self) -> int:
        """Free, or held by blocks that nobody uses."""
        return self.free_tokens + len(self._idle) * self.block_tokens

    def depth(self, path: Sequence[int]) -> int:
        """How many blocks of ``path`` are here; those before a block that is here are too."""
        low, high = 0, len(path)
        locks = self._locks
        while low < high:
            middle = (low + high) // 2
            if path[middle] in locks:
                low = middle + 1
            else:
                high = middle
        return low

    def lock(self, path: Iterable[int]) -> None:
        """Protect blocks that are here from eviction, once more each."""
        locks, idle = self._locks, self._idle
        for block in path:
            count = locks[block]
            if not count:
                del idle[block]
            locks[block] = count + 1

    def unlock(self, path: Sequence[int]) -> None:
        """Undo one lock of each; the last of ``path`` becomes the oldest of them."""
        locks, idle = self._locks, self._idle
        for block in reversed(path):
            count = locks[block] - 1
            locks[block] = count
            if not count:
                idle[block] = None

    def reserve(self, tokens: int) -> None:
        """Set ``tokens`` aside, evicting as needed. Raises ValueError when that cannot be."""
        if tokens > self.available_tokens:
            raise ValueError(f"{tokens} tokens asked of {self.available_tokens}")
        self.reserved += tokens
        while self.free_tokens < 0:
            block, _ = self._idle.popitem(last=False)
            del self._locks[block]
            self.windows.discard(block)
            if self.changes is not None:
                self.changes[block] = None

    def release(self, tokens: int) -> None:
        """Give reserved tokens back."""
        self.reserved -= tokens

    def insert(self, path: Iterable[int]) -> None:
        """Computed blocks enter, locked, out of what is reserved.

        A block that another request inserted meanwhile is shared; its reservation is given back.
        """
        locks, changes = self._locks, self.changes
        count = 0
        for block in path:
            count += 1
            held = locks.get(block)
            if held is None:
                locks[block] = 1
                if changes is not None:
                    changes[block] = None
            else:
                if not held:
                    del self._idle[block]
                locks[block] = held + 1
        self.reserved -= count * self.block_tokens

    def check(self, locked: dict[int, int]) -> None:
        """Raises AssertionError when counts differ from ``locked`` (locks by block) or the
        capacity is exceeded."""
        assert self.reserved >= 0, f"{self.reserved} tokens are reserved"
        assert self.free_tokens >= 0, f"{-self.free_tokens} tokens too many"
        counted = {block: count for block, count in self._locks.items() if count}
        assert counted == locked, "locks differ from those of the requests"
        idle = {block for block, count in self._locks.items() if not count}
        assert idle == set(self._idle), "idle blocks differ from those without a lock"
        assert len(self.windows) <= self.windows.capacity, "more windows than there is room for"


class Tier:
    """Host memory of a replica, or the store that all replicas share: blocks and windows."""

    __slots__ = ("_order", "capacity", "changes", "windows")

    def __init__(self, capacity: int, windows: int, changes: Changes | None = None) -> None:
        self.capacity = capacity
        self.changes = changes
        self.windows = Windows(windows, changes)
        self._order: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._order

    def __len__(self) -> int:
        return len(self._order)

    def depth(self, path: Sequence[int], start: int) -> int:
        """How far ``path`` is here without a gap from ``start`` on."""
        order = self._order
        while start < len(path) and path[start] in order:
            start += 1
        return start

    def write(self, path: Sequence[int]) -> None:
        """Keep copies of these blocks, the first of them as the youngest."""
        order, changes = self._order, self.changes
        for block in reversed(path):
            if block in order:
                order.move_to_end(block)
            else:
                order[block] = None
                if changes is not None:
                    changes[block] = None
        while len(order) > self.capacity:
            gone, _ = order.popitem(last=False)
            self.windows.discard(gone)
            if changes is not None:
                changes[gone] = None
