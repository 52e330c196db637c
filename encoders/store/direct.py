"""Rows between nodes by Ray's direct tensor transport (NIXL), past its object store.

It moves memory from one actor to another without a copy in between, over RDMA where there is any.
Both ends must be actors and need NIXL, which GPU machines have; everywhere else, and whenever it
fails, rows go through host memory and the object store (`encoders.store.remote`).
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from encoders.embedding import Embedding, RowsArray
from encoders.store.format import Head
from encoders.store.reference import RowsRef, open_rows

if TYPE_CHECKING:
    import torch

TRANSPORT = "nixl"


@cache
def available() -> bool:
    """Whether this process can receive tensors directly. Asked once: it does not change."""
    ray = sys.modules.get("ray")
    if find_spec(TRANSPORT) is None or ray is None or not ray.is_initialized():
        return False
    if ray.get_runtime_context().get_actor_id() is None:
        return False
    from ray.experimental.rdt.nixl_tensor_transport import _nixl_transport_available_in_process

    return bool(_nixl_transport_available_in_process())


class NodeRows:
    """An actor on the owner's node that reads files of its store."""

    def read(self, path: str, digest: str) -> tuple[Head, torch.Tensor]:
        """A file's head and its rows. Raises `RowsLost`."""
        with open_rows(path, digest) as lease:
            return lease.head, lease.rows().tensor()


def receive(reference: RowsRef, transport: str | None = TRANSPORT) -> tuple[Embedding, float]:
    """The embedding behind a reference, and the seconds it takes to compute. Blocks.

    Raises `RowsLost` wrapped in Ray's error, or what the transport raises. `transport`: None sends
    the tensor as any other value.
    """
    import ray

    method = _owner(reference.node, transport is not None).read
    if transport is not None:
        method = method.options(tensor_transport=transport)
    head, rows = ray.get(method.remote(reference.path, reference.digest))
    array = RowsArray.from_tensor(rows)
    return Embedding(head.modality, head.digest, head.layout, array), head.seconds


def _owner(node: str, direct: bool) -> Any:
    """The actor of a node, made by whoever needs it first."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kind: Any = ray.remote(num_cpus=0, enable_tensor_transport=direct)(NodeRows)
    return kind.options(
        name=f"omniserve-rows-{node}-{direct}",
        get_if_exists=True,
        max_concurrency=4,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote()
