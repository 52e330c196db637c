"""Rows from another node's store, through Ray.

The owner's node runs a task that reads the file; the rows come back through Ray's object store,
which moves them between nodes in parallel chunks. No service waits on a node for it, so a single
machine pays nothing. A task holds the rows in memory only until they are copied here.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from encoders.embedding import Embedding
from encoders.store import direct
from encoders.store.reference import RowsLost, RowsRef, open_rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fetched:
    """An embedding with its rows as an array, and the seconds it takes to compute."""

    embedding: Embedding
    seconds: float


def read_file(path: str, digest: str) -> Fetched:
    """What a file of this node's store holds. Raises `RowsLost`."""
    with open_rows(path, digest) as lease:
        head = lease.head
        return Fetched(Embedding(head.modality, digest, head.layout, lease.rows()), head.seconds)


async def fetch(reference: RowsRef) -> Fetched:
    """The embedding behind a reference to another node. Raises `RowsLost`, also when the node is
    gone.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if direct.available():
        try:
            return Fetched(*await asyncio.to_thread(direct.receive, reference))
        except Exception as failure:  # whatever it is, the other way may work
            logger.warning("direct tensor transport failed (%s)", type(failure).__name__)

    read: Any = ray.remote(num_cpus=0, max_retries=0)(read_file)
    there = NodeAffinitySchedulingStrategy(reference.node, soft=False)
    try:
        call = read.options(scheduling_strategy=there).remote(reference.path, reference.digest)
        found: Fetched = await call
    except RayTaskError as failure:
        cause = failure.cause
        raise RowsLost(str(cause)) if isinstance(cause, RowsLost) else failure from None
    except RayError as failure:
        raise RowsLost(
            f"node {reference.node} does not give {reference.digest} ({type(failure).__name__})"
        ) from None
    return found
