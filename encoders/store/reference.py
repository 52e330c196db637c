"""References to rows in a node's store, and the way from a reference to the rows."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from encoders.embedding import RowsArray
from encoders.store.format import Damaged, Head, read_head, rows_of


class RowsLost(LookupError):
    """The rows behind a reference are not there any more: encode again.

    References pin nothing, so eviction may come between encoding and use.
    """


@dataclass(frozen=True)
class RowsRef:
    """Rows [rows, hidden] that lie in the file of `digest` in a directory of a node.

    `dtype` is the torch name. `node` is Ray's id of the node, "" outside of Ray.
    """

    digest: str
    node: str
    directory: str
    rows: int
    hidden: int
    dtype: str

    def __len__(self) -> int:
        return self.rows

    @property
    def path(self) -> str:
        return os.path.join(self.directory, self.digest)

    def on(self, node: str) -> bool:
        """Whether the file is on this node."""
        return self.node == node


class Lease:
    """An open file of the store: its memory stays readable until `close`, evicted or not.

    Nothing waits for a lease: eviction removes the file's name at once, and the kernel frees the
    memory with the last lease and mapping, also those of a process that was killed.
    """

    def __init__(self, descriptor: int, head: Head) -> None:
        self._descriptor = descriptor
        self.head = head
        self.size = os.fstat(descriptor).st_size

    @property
    def open(self) -> bool:
        return self._descriptor >= 0

    @property
    def shared_path(self) -> str:
        """A path to the file for processes of this user, for as long as this lease is open."""
        if not self.open:
            raise ValueError("the lease is closed")
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def fileno(self) -> int:
        """The open descriptor, which stays ours."""
        return self._descriptor

    def rows(self) -> RowsArray:
        """The rows as read-only memory of the file; they outlive the lease."""
        memory = mmap.mmap(self._descriptor, self.size, prot=mmap.PROT_READ)
        return rows_of(memory, self.head)

    def close(self) -> None:
        if self.open:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def open_rows(path: str, digest: str) -> Lease:
    """A lease on the file at `path`. Raises `RowsLost` when it is gone or another item's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as failure:
        raise RowsLost(f"the rows of {digest} are gone ({failure.strerror})") from None
    try:
        head = read_head(descriptor)
        if head.digest != digest:
            raise Damaged(f"the file holds {head.digest}")
    except (Damaged, OSError) as failure:
        os.close(descriptor)
        raise RowsLost(f"the rows of {digest} cannot be read: {failure}") from None
    except BaseException:
        os.close(descriptor)
        raise
    return Lease(descriptor, head)
