"""The tiers below the device: how many blocks and windows their bytes hold."""

from __future__ import annotations

from tools.replay.cache import Changes, Tier
from tools.replay.geometry import Geometry, Pools


def host_tier(
    geometry: Geometry, pools: Pools, block_tokens: int, changes: Changes | None
) -> Tier | None:
    """Host memory, split between blocks and windows as a prompt's own KV is."""
    return _tier(geometry, pools.host_bytes, block_tokens, changes)


def store_tier(geometry: Geometry, pools: Pools, block_tokens: int) -> Tier | None:
    """The store that all replicas share."""
    return _tier(geometry, pools.store_bytes, block_tokens, None)


# Blocks of host memory or the store per window that is kept there with them.
_BLOCKS_PER_WINDOW = 8


def _tier(
    geometry: Geometry, room: float, block_tokens: int, changes: Changes | None
) -> Tier | None:
    block = geometry.full_bytes * block_tokens
    window = geometry.window_bytes * geometry.window
    windows = int(room / (block * _BLOCKS_PER_WINDOW + window)) if window else 0
    blocks = windows * _BLOCKS_PER_WINDOW if window else int(room / block)
    return Tier(blocks, windows, changes) if blocks else None
