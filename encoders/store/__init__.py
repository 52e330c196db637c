"""One cache of embeddings per node, shared by all its processes: a file each in shared memory.

`Store` finds, keeps and evicts; `RowsRef` is what travels instead of rows; `open_rows` gives an
engine process the rows behind it. docs/encoders.md says why files and not Ray's object store.
"""

from encoders.store.options import StoreOptions
from encoders.store.reader import RowsReader
from encoders.store.reference import Lease, RowsLost, RowsRef, open_rows
from encoders.store.store import Store

__all__ = [
    "Lease",
    "RowsLost",
    "RowsReader",
    "RowsRef",
    "Store",
    "StoreOptions",
    "open_rows",
]
