"""The pool machine's world with SGLang's host tier and the node's store below the device's pools.

Tags lie in the KV buffers themselves, so that the bytes which travel between tiers are what is
checked at the end of every way.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_memory, get_parallel

from llm import tiers_tree
from llm.store.storage import NodeStorage
from llm.tiers_tree import TreeTiers
from tests.llm.pool_machine_tags import Tags
from tests.llm.pool_machine_world import World
from tests.llm.tier_machine_checks import accounted, check_host

PATIENCE_S = 20.0


class BufferTags(Tags):
    """Tags as the 64 bits of a slot's key row; the value row holds the same twice."""

    def __init__(self, allocator: Any, page: int, kv: Any) -> None:
        super().__init__(allocator, page)
        self.full = _as_tags(kv.full_kv_pool.k_buffer[0])
        self.swa = _as_tags(kv.swa_kv_pool.k_buffer[0])
        self._values = [
            (self.full, kv.full_kv_pool.v_buffer[0]),
            (self.swa, kv.swa_kv_pool.v_buffer[0]),
        ]

    def compute(self, *args: Any) -> None:
        super().compute(*args)
        for keys, values in self._values:
            bits = torch.from_numpy(keys).view(-1, 1, 1).expand(-1, 1, 2)
            values.view(torch.int64).copy_(bits)

    def expect(self, slots: np.ndarray, tokens: Any, window: int, whose: str) -> None:
        super().expect(slots, tokens, window, whose)
        behind = self.window_slots(slots[max(0, len(slots) - window) :])
        for (keys, values), held in zip(self._values, (slots, behind), strict=True):
            bits = values.view(torch.int64)[torch.from_numpy(held)].flatten(1).numpy()
            assert (bits == keys[held][:, None]).all(), f"{whose}: values of other tokens"


def _as_tags(buffer: torch.Tensor) -> np.ndarray:
    """[slots, 1, 2] float32 as int64 [slots], the same memory."""
    return buffer.view(torch.int64).view(-1).numpy()


class TieredWorld(World):
    """L2 of twice and L3 of some times the device's pools.

    The scheduler's part is done here: back-ups are handed over and finished between steps, a
    request asks the store when it arrives and waits for it before it is admitted.
    """

    core = "python"

    def __init__(self, page: int, window: int, drafting: bool) -> None:
        super().__init__(page, window, drafting)
        self.tags = BufferTags(self.allocator, page, self.kv)
        self.directory = Path(tempfile.mkdtemp(prefix="tier-machine-"))
        with self.settings():
            self.tree.init_hicache(SimpleNamespace(file_storage_path=None), self.parameters)
        self.tree.load_back_threshold = 1
        self.tree._omniserve_tiers = TreeTiers(
            {"swa_tails": [self.span, 2 * self.span], "touch_interval_s": 0.0}
        )
        self.tree.checkpoint_into_tree = partial(
            tiers_tree.checkpoint, UnifiedRadixCache.checkpoint_into_tree, self.tree
        )
        self.scheduler = SimpleNamespace(
            enable_hicache_storage=True, enable_lmcache=False, tree_cache=self.tree
        )

    @contextmanager
    def settings(self) -> Iterator[None]:
        slots = self.allocator.size_full
        options = {
            "backend_name": "node",
            "module_path": NodeStorage.__module__,
            "class_name": NodeStorage.__name__,
            "interface_v1": 1,
            "prefetch_threshold": 1,
            "store": {
                "memory_path": str(self.directory / "memory"),
                "memory_bytes": 30 * slots,
                "disk_path": str(self.directory / "disk"),
                "disk_bytes": 150 * slots,
                "timeout_s": PATIENCE_S,
                "facts": {"weights": "tags"},
            },
        }
        with (
            get_memory().override(
                hicache_ratio=2.0,
                hicache_size=0,
                hicache_write_policy="write_through",
                hicache_io_backend="direct",
                hicache_mem_layout="page_first_direct",
                hicache_storage_backend="dynamic",
                hicache_storage_backend_extra_config=json.dumps(options),
                hicache_storage_prefetch_policy="wait_complete",
            ),
            get_parallel().override(tp_rank=0, pp_rank=0, attn_dcp_rank=0),
        ):
            yield

    def host(self, name: str) -> Any:
        """SGLang's host pool ``kv`` or ``swa``."""
        entries = self.tree.cache_controller.mem_pool_host.entries
        return next(entry.host_pool for entry in entries if str(entry.name) == name)

    @property
    def storage(self) -> NodeStorage:
        found: NodeStorage = self.tree.cache_controller.storage_backend
        return found

    def arrive(self, prompt: list[int]) -> None:
        super().arrive(prompt)
        req = self.waiting[-1]
        req.rid = f"r{self.counts['arrived']}"
        self.counts["arrived"] += 1
        Scheduler._prefetch_kvcache(self.scheduler, req)

    def match(self, req: Req) -> None:
        handle = req.cache_request_handle
        self.until(lambda: self.tree.check_prefetch_progress(handle))
        loaded, _ = self.tree.pop_prefetch_loaded_span(handle)
        self.counts["came from the store"] += loaded > 0
        super().match(req)
        below = req.host_hit_length or req.swa_host_hit_length
        if below and self.room(req.host_hit_length + self.span + 2 * self.page):
            self.load_back(req)

    def load_back(self, req: Req) -> None:
        """What admission does with a hit in the host tier."""
        lock = self.tree.lock(req.last_node)
        promised = InitLoadBackParams(req.best_match_node, req.host_hit_length, req=req)
        loaded, req.last_node = self.tree.init_load_back(promised)
        self.tree.unlock(lock)
        req.host_loaded_length = loaded
        req.prefix_len += loaded
        req.kv.cache_protected_len = req.prefix_len
        self.tree.ready_to_load_host_cache()
        self.counts["came from the host"] += loaded > 0

    def leave_queue(self, req: Req) -> None:
        """Abort a request that may be waiting for the store."""
        self.waiting.remove(req)
        self.tree.release_aborted_request(req.cache_request_handle)
        self.counts["left the queue"] += 1

    def pump(self) -> None:
        """What the scheduler does between two steps."""
        self.tree.check_hicache_events()

    def settle(self) -> None:
        """Pump until nothing moves between tiers."""
        tree = self.tree
        for req in self.waiting:
            handle = req.cache_request_handle
            self.until(lambda handle=handle: tree.check_prefetch_progress(handle))
        self.until(
            lambda: (
                not (
                    tree.ongoing_write_through
                    or tree.ongoing_load_back
                    or tree.ongoing_backup
                    or tree.cache_controller.write_queue
                )
            )
        )

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        self.pump()
        while not done():
            assert time.monotonic() < end, "a transfer between tiers does not end"
            time.sleep(0.0005)
            self.pump()

    def forget(self, host: bool) -> None:
        """Push everything out of the device's pools, and out of the host's."""
        self.settle()
        self.evict(self.allocator.size_full, self.allocator.size_swa)
        if host:
            for kind in (ComponentType.SWA, ComponentType.FULL):
                self.tree.evict_host(4 * self.allocator.size_full, kind)
            self.counts["host emptied"] += 1

    def sound(self) -> None:
        self.settle()
        super().sound()
        self.until(lambda: accounted(self.tree))
        check_host(self.tags, self.tree)
        self.storage.store.check()

    def close(self) -> None:
        """Without requests every tier gives every slot back, and what the store has is whole."""
        for req in list(self.waiting):
            self.leave_queue(req)
        super().close()
        self.forget(host=True)
        for entry in self.tree.cache_controller.mem_pool_host.entries:
            pool = entry.host_pool
            assert pool.available_size() == pool.size, f"host {entry.name}: slots are lost"
        self.storage.store.check(deep=True)
        stats = self.storage.stats()
        self.counts["moved to the disk"] += stats["disk"]["entries"] > 0

    def shut(self) -> None:
        """End the transfers' threads and remove the store."""
        self.tree.shutdown()
        self.storage_closed()
        shutil.rmtree(self.directory, ignore_errors=True)

    def storage_closed(self) -> None:
        backend = self.tree.cache_controller.storage_backend
        if backend is not None:
            backend.close()
