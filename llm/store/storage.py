"""SGLang's storage interface over the node's store (``hicache_storage_backend="dynamic"``).

SGLang asks per pool: all pages of ``kv`` and, of ``swa``, the window before the end of what it
wants. Draft layers lie in the same pages as the target's, so MTP state comes with them.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolTransferResult,
)

from llm.store.entry import Views, entry_key
from llm.store.namespace import digest_of
from llm.store.store import NodeStore

KV = "kv"


class NodeStorage(HiCacheStorage):
    """One engine rank's view of the node's store. Faults are misses; nothing raises."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        """Options are in ``extra_config`` under ``store`` (see llm/tiers.py)."""
        options = dict((storage_config.extra_config or {})["store"])
        self._facts = options.pop("facts") | {
            "rank": [storage_config.tp_rank, storage_config.tp_size],
            "pipeline": [storage_config.pp_rank, storage_config.pp_size],
            "context": [storage_config.attn_cp_rank, storage_config.attn_cp_size],
        }
        self._namespaces: dict[str, bytes] = {}
        self._pools: dict[str, Any] = {}
        self.store = NodeStore(
            memory=_path(options["memory_path"]),
            memory_bytes=options["memory_bytes"],
            disk=_path(options["disk_path"]),
            disk_bytes=options["disk_bytes"],
            timeout_s=options["timeout_s"],
        )
        self._touches: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        self._toucher = threading.Thread(target=self._touch_all, daemon=True, name="store-touch")
        self._toucher.start()

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host
        anchor = getattr(mem_pool_host, "anchor_entry", None)
        self._add_pool(KV, anchor.host_pool if anchor else mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self._add_pool(str(host_pool_name), host_pool)

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        return _leading(self._there(KV, keys))

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> PoolTransferResult:
        """The longest restorable prefix of ``keys``, in pages, with what each pool has."""
        pages = _leading(self._there(KV, keys))
        keys = keys[:pages]
        hits = {KV: pages}
        restorable = list(range(1, pages + 1))
        for transfer in pool_transfers or []:
            name = str(transfer.name)
            there = self._there(name, keys)
            window = len(keys)
            if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                window = max(1, len(transfer.keys or ()))
            ends = restorable_ends(there, window)
            hits[name] = max(ends, default=0)
            restorable = [end for end in restorable if end in ends]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        return self._get(KV, keys, host_indices)

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        return self._set(KV, keys, host_indices)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {t.name: self._get(str(t.name), t.keys, t.host_indices) for t in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {t.name: self._set(str(t.name), t.keys, t.host_indices) for t in transfers}

    def exists(self, key: str) -> bool:
        return self._there(KV, [key])[0]

    def touch(self, keys: list[str]) -> None:
        """Refresh the last use of pages that were served from a tier above; returns at once."""
        self._touches.put(keys)

    def stats(self) -> dict[str, Any]:
        """Counters and sizes by tier."""
        return self.store.stats()

    def clear(self) -> bool:
        """The store is shared: one engine may not empty it."""
        return False

    def close(self) -> None:
        self._touches.put(None)
        self._toucher.join(timeout=5)
        self.store.close()

    # SGLang takes pages without a copy (interface_v1); these are the older way.
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        raise NotImplementedError("pages are read in batches, into the host pool")

    batch_get = set = batch_set = get

    def _add_pool(self, name: str, pool: Any) -> None:
        self._pools[name] = pool
        geometry = {
            "pool": name,
            "layout": pool.layout,
            "page_size": pool.page_size,
            "dtype": str(pool.dtype),
            "layers": [pool.target_layer_num, pool.layer_num],
            "heads": [pool.head_num, pool.head_dim, pool.v_head_dim],
        }
        self._namespaces[name] = digest_of({"engine": self._facts, "pool": geometry})

    def _keys(self, name: str, pages: Sequence[str]) -> list[bytes]:
        namespace = self._namespaces[name]
        return [entry_key(namespace, name, page) for page in pages]

    def _there(self, name: str, pages: Sequence[str]) -> list[bool]:
        keys = self._keys(name, pages)
        found = self.store.find(keys)
        return [key in found for key in keys]

    def _get(self, name: str, pages: Sequence[str], host_indices: torch.Tensor) -> list[bool]:
        return self.store.get(self._keys(name, pages), self._views(name, pages, host_indices))

    def _set(self, name: str, pages: Sequence[str], host_indices: torch.Tensor) -> list[bool]:
        views = self._views(name, pages, host_indices)
        return self.store.put(list(zip(self._keys(name, pages), views, strict=True)))

    def _views(self, name: str, pages: Sequence[str], host_indices: torch.Tensor) -> list[Views]:
        """The memory of pages in a host pool, K and V of each."""
        pointers, sizes = self._pools[name].get_page_buffer_meta(host_indices)
        parts = len(pointers) // len(pages) if pages else 0
        flat = [_memory(at, size) for at, size in zip(pointers, sizes, strict=True)]
        return [flat[i * parts : (i + 1) * parts] for i in range(len(pages))]

    def _touch_all(self) -> None:
        while (pages := self._touches.get()) is not None:
            for name in list(self._pools):
                self.store.touch(self._keys(name, pages))
            if self._touches.empty():
                self.store.flush()


def restorable_ends(there: Sequence[bool], window: int) -> set[int]:
    """Prefix lengths (pages) whose last ``window`` pages, or all if fewer, are there."""
    ends: set[int] = set()
    run = 0
    for i, found in enumerate(there):
        run = run + 1 if found else 0
        if run >= min(window, i + 1):
            ends.add(i + 1)
    return ends


def _leading(there: Sequence[bool]) -> int:
    return next((i for i, found in enumerate(there) if not found), len(there))


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
