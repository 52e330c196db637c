"""Where a node's store is and how large, as plain data that travels to every process."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from encoders.store.store import Store

logger = logging.getLogger(__name__)

# The rest of a small file system is left to others (Ray's object store lies in /dev/shm too).
_MOST_OF_FILE_SYSTEM = 0.8


@dataclass(frozen=True)
class StoreOptions:
    """`directory` and `budget` in bytes as in `Store`; `check_period_s`: seconds between two
    checks of the store by each process that writes to it.
    """

    directory: str
    budget: int
    check_period_s: float = 60.0

    def open(self) -> Store:
        """The store of this node. Raises `OSError` where its directory cannot be made.

        Where the file system holds less than the budget, which containers do with /dev/shm, the
        budget is four fifths of it: every process of the node comes to the same number.
        """
        parent = Path(self.directory).parent
        parent.mkdir(parents=True, exist_ok=True)
        system = os.statvfs(parent)
        most = int(system.f_blocks * system.f_frsize * _MOST_OF_FILE_SYSTEM)
        if most < self.budget:
            logger.warning(
                "the embedding store may hold %d bytes, %s has room for %d: using these",
                self.budget,
                parent,
                most,
            )
        return Store(self.directory, min(self.budget, most), this_node())


def this_node() -> str:
    """Ray's id of this node, "" in a process that does not belong to Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().get_node_id())
