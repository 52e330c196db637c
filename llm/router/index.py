"""Which replica holds which prefix: an index over block digests, fed by the replicas' events.

Under sliding windows a prefix is usable only up to a position before which the last window's KV
still exists. A replica says so with each block it reports: a *usable* block is one at whose end a
match may stop. A model without windows reports every block as usable.

A set of replicas is a bit mask, so a lookup costs a few machine operations per block of the
prompt, whatever the number of replicas. Blocks age in two generations: a block that is stored or
matched is young; when the young half is full, the old half (what nobody touched for that long) is
forgotten. A prompt's blocks are touched from its start, so a parent is never older than its child.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

import numpy as np
import numpy.typing as npt

from llm.router.prompt import Prompt
from llm.router.slots import Slots

# (replica, block) pairs; about 200 bytes each (docs/scheduling.md), so 100 MB at the most.
MAX_PAIRS = 1 << 19

_Holders = tuple[int, int]  # masks of the replicas that hold the block, and that can stop there
_NOBODY: _Holders = (0, 0)
_NOTHING: frozenset[int] = frozenset()
_FEW = 24


class PrefixIndex:
    """Blocks of every replica; at most 1.5 x `max_pairs` (replica, block) pairs."""

    def __init__(self, max_pairs: int = MAX_PAIRS, slots: Slots | None = None) -> None:
        if max_pairs < 2:
            raise ValueError(f"max_pairs must be at least 2, got {max_pairs}")
        self.slots = slots if slots is not None else Slots()
        self._max_pairs = max_pairs
        self._young: dict[int, _Holders] = {}
        self._old: dict[int, _Holders] = {}
        self._young_pairs = 0
        self._old_pairs = 0
        self._held: dict[str, set[int]] = {}
        # Most blocks share few sets of holders: one object for each.
        self._shared: dict[_Holders, _Holders] = {}

    def __len__(self) -> int:
        """(replica, block) pairs."""
        return self._young_pairs + self._old_pairs

    @property
    def replicas(self) -> list[str]:
        """Names of the replicas that are known."""
        return list(self._held)

    @property
    def names(self) -> Set[str]:
        """The same as a live view, not to be kept."""
        return self._held.keys()

    def held_by(self, replica: str) -> Set[int]:
        """Blocks that a replica is known to hold; a live view, not to be kept."""
        return self._held.get(replica, _NOTHING)

    def add_replica(self, replica: str) -> None:
        """A replica joins, empty; one that is known stays as it is."""
        if replica not in self._held:
            self.slots.add(replica)
            self._held[replica] = set()

    def drop_replica(self, replica: str) -> None:
        """A replica is gone; an unknown one is no error."""
        if replica in self._held:
            self.cleared(replica)
            del self._held[replica]
            self.slots.free(replica)

    def stored(
        self, replica: str, blocks: Sequence[int], usable: Iterable[int] | None = None
    ) -> None:
        """`replica` holds `blocks` (in prompt order); a match may stop at those in `usable`.

        `usable` None: at each of them. Blocks that were usable before and are stored again
        without being so lose it: the event is what the replica knows now.
        """
        self.add_replica(replica)
        bit = 1 << self.slots[replica]
        held = self._held[replica]
        stops = None if usable is None else frozenset(usable)
        for block in blocks:
            holders, stopping = self._take(block)
            holders |= bit
            stopping = stopping | bit if stops is None or block in stops else stopping & ~bit
            held.add(block)
            self._put(block, (holders, stopping))
        self._age()

    def removed(self, replica: str, blocks: Iterable[int]) -> None:
        """`replica` evicted `blocks`; unknown ones are no error."""
        held = self._held.get(replica)
        if held is None:
            return
        mask = ~(1 << self.slots[replica])
        for block in blocks:
            if block not in held:
                continue
            held.discard(block)
            young = block in self._young
            holders, stopping = self._take(block)
            self._put(block, (holders & mask, stopping & mask), young)

    def cleared(self, replica: str) -> None:
        """`replica` holds nothing any more (it restarted, or its cache was flushed)."""
        self.removed(replica, list(self._held.get(replica, ())))

    def replace(
        self,
        replica: str,
        blocks: Sequence[int],
        usable: Iterable[int] | None = None,
        modulus: int = 1,
        remainder: int = 0,
    ) -> None:
        """Of all blocks with `block % modulus == remainder`, `replica` holds exactly these."""
        now = set(blocks)
        gone = [
            block
            for block in self._held.get(replica, ())
            if block % modulus == remainder and block not in now
        ]
        self.removed(replica, gone)
        self.stored(replica, blocks, usable)

    def match(self, prompt: Prompt) -> dict[str, int]:
        """Usable tokens of the prompt by replica; replicas without any are left out."""
        found: dict[str, int] = {}
        for tokens, mask in _longest(self._walk(prompt)[0]):
            for slot in _bits(mask):
                name = self.slots.names[slot]
                assert name is not None
                found[name] = tokens
        return found

    def usable(self, prompt: Prompt, replica: str) -> int:
        """Usable tokens of the prompt on one replica, which is known."""
        bit = 1 << self.slots[replica]
        stops = self._walk(prompt)[0]
        return next((tokens for tokens, mask in reversed(stops) if mask & bit), 0)

    def reach(self, prompt: Prompt) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Tokens of the prompt that are usable, and that are held, by slot; int64 [len(slots)]."""
        stops, held = self._walk(prompt)
        return self._by_slot(stops), self._by_slot(held)

    def _by_slot(self, ends: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
        found = np.zeros(len(self.slots), np.int64)
        for tokens, mask in _longest(ends):
            if mask.bit_count() <= _FEW:
                for slot in _bits(mask):
                    found[slot] = tokens
            else:
                data = np.frombuffer(mask.to_bytes(len(found) // 8 + 1, "little"), np.uint8)
                chosen = np.unpackbits(data, count=len(found), bitorder="little")
                found[chosen.view(np.bool_)] = tokens
        return found

    def _walk(self, prompt: Prompt) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Where matches may stop, and where what is held ends: (tokens, replicas), ascending."""
        alive, reached = -1, 0
        stops: list[tuple[int, int]] = []
        held: list[tuple[int, int]] = []
        young, old, last = self._young, self._old, 0
        aged = []
        for block, end in zip(prompt.blocks, prompt.ends, strict=True):
            entry = young.get(block)
            if entry is None:
                entry = old.get(block)
                if entry is None:
                    break
                aged.append(block)
            holders, stopping = entry
            still = alive & holders
            if still != alive:
                if reached:
                    held.append((reached, alive))
                alive = still
                if not alive:
                    break
            reached = end
            stopping &= alive
            if stopping:
                if stopping == last:
                    stops.pop()
                stops.append((end, stopping))
                last = stopping
        if reached and alive:
            held.append((reached, alive))
        for block in aged:
            self._put(block, self._take(block))
        if aged:
            self._age()
        return stops, held

    def _take(self, block: int) -> _Holders:
        """Take a block out of its generation."""
        entry = self._young.pop(block, None)
        if entry is not None:
            self._young_pairs -= entry[0].bit_count()
            return entry
        entry = self._old.pop(block, None)
        if entry is not None:
            self._old_pairs -= entry[0].bit_count()
            return entry
        return _NOBODY

    def _put(self, block: int, entry: _Holders, young: bool = True) -> None:
        """Put a block into a generation; one that nobody holds is forgotten."""
        if not entry[0]:
            return
        entry = self._shared.setdefault(entry, entry)
        if young:
            self._young[block] = entry
            self._young_pairs += entry[0].bit_count()
        else:
            self._old[block] = entry
            self._old_pairs += entry[0].bit_count()

    def _age(self) -> None:
        if self._young_pairs <= self._max_pairs // 2:
            return
        for block, (holders, _) in self._old.items():
            for slot in _bits(holders):
                name = self.slots.names[slot]
                assert name is not None
                self._held[name].discard(block)
        self._old, self._old_pairs = self._young, self._young_pairs
        self._young, self._young_pairs = {}, 0
        self._shared = {entry: entry for entry in self._old.values()}
        if self._old_pairs > self._max_pairs:
            self._shed()

    def _shed(self) -> None:
        """One event larger than the bound: forget its deepest blocks."""
        for block in reversed(list(self._old)):
            holders, _ = self._take(block)
            for slot in _bits(holders):
                name = self.slots.names[slot]
                assert name is not None
                self._held[name].discard(block)
            if self._old_pairs <= self._max_pairs:
                return

    def check(self) -> None:
        """Raises AssertionError when generations, masks and replicas do not agree."""
        assert not self._young.keys() & self._old.keys(), "a block in both generations"
        pairs: dict[str, set[int]] = {name: set() for name in self._held}
        for generation, count in ((self._young, self._young_pairs), (self._old, self._old_pairs)):
            total = 0
            for block, (holders, stopping) in generation.items():
                assert holders, f"block {block} is held by nobody"
                assert not stopping & ~holders, f"block {block} is usable where it is not held"
                total += holders.bit_count()
                for slot in _bits(holders):
                    name = self.slots.names[slot]
                    assert name is not None, f"block {block} is held by the free slot {slot}"
                    pairs[name].add(block)
            assert total == count, f"{total} pairs are counted as {count}"
        assert pairs == self._held, "masks and blocks of the replicas differ"
        assert len(self) <= 1.5 * self._max_pairs, f"{len(self)} pairs exceed the bound"


def _longest(ends: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(tokens, replicas) with each replica once, the longest first."""
    seen = 0
    for tokens, mask in reversed(ends):
        fresh = mask & ~seen
        if fresh:
            yield tokens, fresh
            seen |= fresh


def _bits(mask: int) -> Iterator[int]:
    """Positions of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
