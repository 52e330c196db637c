"""Rows from the node's store to SGLang's engine processes, without a copy.

SGLang copies a tensor into shared memory of its own for each request. `SharedRows` travel as a
path instead: every rank of the engine maps the same file. On the wire they take the place of
SGLang's own shared-memory pointer, so that a mapping that fails costs one request and no process.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from dataclasses import astuple
from typing import Any

import torch
from sglang.srt.managers.mm_utils import ShmPointerMMData
from sglang.srt.multimodal.transport import determine_tensor_transport_mode

from encoders.embedding import RowsArray
from encoders.store import Lease, open_rows
from encoders.store.format import rows_of
from llm.rows import SharedRows

# A file to which engine processes append a line for each item that reaches them (benchmarks).
TRACE_ENV = "OMNISERVE_ROWS_TRACE"


class MappedRows(ShmPointerMMData):
    """`SharedRows` on their way to an engine process."""

    def __init__(self, rows: SharedRows) -> None:
        self.__setstate__({"rows": astuple(rows)}, False)

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": astuple(self.rows)}

    def __setstate__(self, state: dict[str, Any], arrived: bool = True) -> None:
        """Raises nothing: ranks must agree on a failure, which `materialize` reports."""
        self.rows = SharedRows(*state["rows"])
        self.precomputed_hash = None
        self._shm_handle = None
        self._lease: Lease | None = None
        self._materialization_error: str | None = None
        if arrived:
            try:
                self._lease = open_rows(self.rows.path, self.rows.digest)
            except Exception as failure:
                self._materialization_error = f"{type(failure).__name__}: {failure}"

    def materialize(self) -> torch.Tensor:
        """The rows as memory of the file; writes would stay private to this process.

        Raises RuntimeError when the file could not be opened.
        """
        if self._lease is None:
            raise RuntimeError(self._materialization_error or "the rows were given back")
        try:
            memory = mmap.mmap(self._lease.fileno(), self._lease.size, access=mmap.ACCESS_COPY)
            whole = _tensor(rows_of(memory, self._lease.head))
            rows = whole[self.rows.start : self.rows.start + self.rows.count]
            _trace(self._lease, rows)
            return rows
        finally:
            self.close_and_unlink()

    def close_and_unlink(self) -> None:
        """Close; the file's name belongs to the store."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def __del__(self) -> None:
        self.close_and_unlink()


def carried(rows: torch.Tensor | SharedRows) -> torch.Tensor | MappedRows:
    """Rows as a request takes them along.

    An engine that spans several nodes gets them by value: a path means nothing on the others.
    """
    if isinstance(rows, torch.Tensor):
        return rows
    if determine_tensor_transport_mode() == "default":
        with open_rows(rows.path, rows.digest) as lease:
            return lease.rows().tensor()[rows.start : rows.start + rows.count]
    return MappedRows(rows)


def register() -> None:
    """Teach SGLang's messages about `MappedRows`, in every process that sends or receives them."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    package = "sglang.srt.utils.msgpack_utils"
    HookRegistry.register(f"{package}._is_shm_pointer_mm_data", _is_pointer, HookType.AROUND)
    HookRegistry.register(f"{package}._decode_shm_pointer_mm_data", _decode, HookType.AROUND)


def _is_pointer(original: Any, obj: object) -> bool:
    return isinstance(obj, MappedRows) or bool(original(obj))


def _decode(original: Any, state: dict[str, Any]) -> Any:
    if "rows" not in state:
        return original(state)
    from sglang.srt.utils.msgpack_utils import _from_msgpack_state

    rows = MappedRows.__new__(MappedRows)
    rows.__setstate__(_from_msgpack_state(state))
    return rows


def _tensor(rows: RowsArray) -> torch.Tensor:
    host = torch.from_numpy(rows.data)
    return host.view(torch.bfloat16) if rows.dtype == "bfloat16" else host


def _trace(lease: Lease, rows: torch.Tensor) -> None:
    """When an item's rows were there, and whether they are the file's own memory."""
    path = os.environ.get(TRACE_ENV)
    if path is None:
        return
    line = {
        "digest": lease.head.digest,
        "monotonic": time.monotonic(),
        "bytes": rows.nbytes,
        "mapped": _inode_at(rows.data_ptr()) == os.fstat(lease.fileno()).st_ino,
    }
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


def _inode_at(address: int) -> int | None:
    """The inode of the file that is mapped at an address of this process."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.split()
            start, _, end = fields[0].partition("-")
            if int(start, 16) <= address < int(end, 16):
                return int(fields[4])
    return None
