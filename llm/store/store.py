"""The store of a node: a memory tier over a disk tier, shared by all processes of the node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm.store.entry import Views
from llm.store.log import Entry
from llm.store.tier import Tier


class NodeStore:
    """Pages by key. A page enters at the top; what leaves a tier for want of room goes one down,
    and a page that is read from a lower tier moves up again.
    """

    def __init__(
        self,
        *,
        memory: Path | None,
        memory_bytes: int,
        disk: Path | None,
        disk_bytes: int,
        timeout_s: float = 0.5,
        retry_s: float = 5.0,
    ) -> None:
        """Directories of the tiers; at least one. Raises ValueError for none.

        The memory tier's directory is on a file system in memory (``/dev/shm``): it outlives
        processes, not the machine.
        """
        self.tiers: dict[str, Tier] = {}
        if disk is not None:
            self.tiers["disk"] = Tier(disk, disk_bytes, timeout_s=timeout_s, retry_s=retry_s)
        if memory is not None:
            below = self.tiers.get("disk")
            top = Tier(
                memory,
                memory_bytes,
                durable=False,
                timeout_s=timeout_s,
                retry_s=retry_s,
                demote=below.put if below else None,
            )
            self.tiers = {"memory": top} | self.tiers
        if not self.tiers:
            raise ValueError("a store needs a directory for a memory tier, a disk tier or both")

    def find(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of ``keys`` that are in some tier."""
        found: set[bytes] = set()
        for tier in self.tiers.values():
            found |= tier.find([key for key in keys if key not in found])
            if len(found) == len(keys):
                break
        return found

    def get(self, keys: Sequence[bytes], views: Sequence[Views]) -> list[bool]:
        """Read pages into ``views``; which are there. The views of the others are undefined."""
        done = [False] * len(keys)
        above: list[Tier] = []
        for tier in self.tiers.values():
            left = [i for i, ok in enumerate(done) if not ok]
            if not left:
                break
            read = tier.get([keys[i] for i in left], [views[i] for i in left])
            hits = [i for i, ok in zip(left, read, strict=True) if ok]
            for i in hits:
                done[i] = True
            if hits and above:
                # A read does not wait for writers and what they move.
                moved = above[0].put([(keys[i], views[i]) for i in hits], wait=False)
                above[0].counters.moved_in += sum(moved)
            above.append(tier)
        return done

    def put(self, entries: Sequence[Entry]) -> list[bool]:
        """Store pages; which are now there."""
        done = [False] * len(entries)
        for tier in self.tiers.values():
            left = [i for i, ok in enumerate(done) if not ok]
            if not left:
                break
            for i, ok in zip(left, tier.put([entries[i] for i in left]), strict=True):
                done[i] = ok
        return done

    def touch(self, keys: Sequence[bytes]) -> None:
        """Note that pages were used, wherever the use was served from."""
        for tier in self.tiers.values():
            tier.touch(keys)

    def flush(self) -> None:
        for tier in self.tiers.values():
            tier.flush()

    def close(self) -> None:
        for tier in self.tiers.values():
            tier.close()

    def stats(self) -> dict[str, Any]:
        """Counters and sizes by tier."""
        return {name: tier.stats() for name, tier in self.tiers.items()}

    def check(self, deep: bool = False) -> None:
        """Raises AssertionError if a tier is inconsistent; call while nobody writes."""
        for tier in self.tiers.values():
            tier.check(deep)
