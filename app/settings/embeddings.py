"""Settings of the store in which every node keeps finished embeddings."""

from __future__ import annotations

import secrets
from pathlib import Path

from pydantic import Field

from app.settings.base import GIB, MIB, Section
from encoders.store import StoreOptions
from encoders.store.directory import PREFIX


class EmbeddingSettings(Section):
    """The embedding store of a node, shared by all its processes."""

    bytes: int = Field(
        default=256 * MIB,
        ge=0,
        le=4096 * GIB,
        description="Bytes of embeddings kept on each node; 0 = none",
    )
    directory: str = Field(
        default="/dev/shm",
        min_length=1,
        description="Where the store's own directory is made: a file system in memory",
    )
    check_period_s: float = Field(
        default=60.0, gt=0, le=86_400, description="Seconds between two checks of its invariants"
    )

    def store(self) -> StoreOptions | None:
        """A store of its own for one deployment of the application, the same on every node.

        Embeddings of an earlier one may come from other code, so they are not found again.
        """
        if not self.bytes:
            return None
        directory = Path(self.directory) / f"{PREFIX}{secrets.token_hex(6)}"
        return StoreOptions(str(directory), self.bytes, self.check_period_s)
