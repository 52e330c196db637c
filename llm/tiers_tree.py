"""What SGLang's prefix tree leaves to do for its tiers: hooks on ``UnifiedRadixCache``.

Of the four cases in which tiers disagree about a prefix under a sliding window (docs/llm.md),
SGLang handles two: what only the device has is copied to the host when it is inserted again, and
what only the host has is loaded. Here are the others: a prefix that is always served from above
ages out of the store, and one that ends inside a longer prompt has no window KV in any tier.
"""

from __future__ import annotations

import json
import time
from typing import Any

_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_STATE = "sglang.srt.managers.scheduler_components.internal_state"
_SLEEP = "sglang.srt.managers.scheduler.Scheduler.maybe_sleep_on_idle"
OPTIONS = "omniserve"


def register(registry: Any, kinds: Any) -> None:
    """Register the hooks; without tiers in the settings they change nothing."""
    registry.register(f"{_TREE}.checkpoint_into_tree", checkpoint, kinds.AROUND)
    registry.register(
        f"{_STATE}.SchedulerInternalStateController._add_memory_usage", add_state, kinds.AFTER
    )


class TreeTiers:
    """What the hooks remember of one tree: its options, when L3 was last told, and counts."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.tails: list[int] = options.get("swa_tails", [])
        self.touch_interval_s: float = options.get("touch_interval_s", 60.0)
        self.told: dict[int, float] = {}
        self.tokens = {"prompt": 0, "device": 0, "host": 0, "storage": 0}

    def due(self, node: int, now: float) -> bool:
        """Whether the store should hear of this node's use again."""
        if now - self.told.get(node, -self.touch_interval_s) < self.touch_interval_s:
            return False
        if len(self.told) > 100_000:
            self.told.clear()
        self.told[node] = now
        return True


def of(tree: Any) -> TreeTiers:
    """The state of a tree; options travel in the storage back end's own argument, which reaches
    the scheduler process in every way of starting it."""
    found: TreeTiers | None = tree.__dict__.get("_omniserve_tiers")
    if found is None:
        from sglang.srt.runtime_context import get_memory

        text = get_memory().hicache_storage_backend_extra_config
        options = json.loads(text).get(OPTIONS, {}) if text and text[0] == "{" else {}
        found = tree._omniserve_tiers = TreeTiers(options)
    return found


def checkpoint(original: Any, tree: Any, req: Any, *, up_to: int, **kwargs: Any) -> None:
    """Insert a request's KV into the tree, at chosen positions first, and tell the store of the
    prefix that the request found."""
    tiers = of(tree)
    # The request still holds a lock on this node, so it is there.
    used = req.last_node
    if tree.enable_storage and not tree.is_root(used) and tiers.due(used, time.monotonic()):
        touch_store(tree, used)
    if req.finished():
        _count(tiers, req)
    else:
        for tail in inner_tails(tree, tiers, req, up_to):
            original(tree, req, up_to=tail, **kwargs)
    original(tree, req, up_to=up_to, **kwargs)


def inner_tails(tree: Any, tiers: TreeTiers, req: Any, up_to: int) -> list[int]:
    """Where to insert on the way to ``up_to``, so that the window KV before it stays matchable.

    A tree node keeps window KV only before its end. Positions count prompt tokens; one is usable
    while the request still holds the window before it.
    """
    if not tiers.tails or not tree.supports_swa():
        return []
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    page = tree.page_size
    window = -(-tree.sliding_window_size // page) * page
    pairs = int(tree.tree_core.is_eagle)
    end = min(up_to, len(req.origin_input_ids)) - pairs
    kept_from = req.kv.get_evicted_seqlen(ComponentType.SWA)
    return [
        tail + pairs
        for tail in sorted({position // page * page for position in tiers.tails})
        if req.kv.cache_protected_len < tail < end and kept_from <= max(tail - window, 0)
    ]


def touch_store(tree: Any, node: Any) -> None:
    """Tell the store that a prefix was used, from whichever tier."""
    touch = getattr(tree.cache_controller.storage_backend, "touch", None)
    if touch is not None:
        core = tree.tree_core
        touch([*core.get_prefix_hash_values(node), *core.get_hash_values(node)])


def sleep_on_idle(original: Any, scheduler: Any) -> None:
    """Sleep briefly while a tier moves pages: a second, SGLang's sleep, would be added to every
    request that waits for the store."""
    tree = scheduler.tree_cache
    if scheduler.idle_sleeper is None or getattr(tree, "cache_controller", None) is None:
        return original(scheduler)
    if not moving(tree) and not scheduler.waiting_queue:
        return original(scheduler)
    scheduler.idle_sleeper.poller.poll(1)
    return None


def moving(tree: Any) -> int:
    """How many prefixes are on their way between tiers."""
    ways = (tree.ongoing_prefetch, tree.ongoing_backup, tree.ongoing_write_through)
    return sum(map(len, ways)) + len(tree.cache_controller.write_queue)


def add_state(result: None, readback: Any, state: dict[str, Any]) -> None:
    """Add the tiers' counters to the scheduler's internal state, which replicas export."""
    tree = readback.scheduler.tree_cache
    if not hasattr(tree, "tree_core"):
        return
    found: dict[str, Any] = {"tokens": dict(of(tree).tokens)}
    controller = tree.cache_controller
    if controller is not None:
        found["moving"] = moving(tree)
        found["host"] = {
            str(entry.name): {
                "tokens": entry.host_pool.size,
                "free": entry.host_pool.available_size(),
            }
            for entry in controller.mem_pool_host.entries
        }
        stats = getattr(controller.storage_backend, "stats", None)
        if stats is not None:
            found["store"] = stats()
    state["tiers"] = found


def _count(tiers: TreeTiers, req: Any) -> None:
    tiers.tokens["prompt"] += len(req.origin_input_ids)
    tiers.tokens["device"] += req.cached_tokens_device
    tiers.tokens["host"] += req.cached_tokens_host
    tiers.tokens["storage"] += req.cached_tokens_storage
