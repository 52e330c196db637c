"""Every page of both host pools has one owner and holds the tokens of its node."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore

from tests.llm.pool_machine_tags import Tags

KINDS = {"kv": ComponentType.FULL, "swa": ComponentType.SWA}


def accounted(tree: Any) -> bool:
    """Whether as many host slots are free or in the tree as there are. A read from the store that
    nobody waits for any more gives its slots back some time after."""
    if not shows_nodes(tree):
        return True
    entries = tree.cache_controller.mem_pool_host.entries
    pools = {str(entry.name): entry.host_pool for entry in entries}
    held = dict.fromkeys(pools, 0)
    for node, _ in _nodes(tree.tree_core.root_node, []):
        for name, kind in KINDS.items():
            slots = node.component_data[kind].host_value
            held[name] += 0 if slots is None else len(slots)
    return all(pool.available_size() + held[name] >= pool.size for name, pool in pools.items())


def shows_nodes(tree: Any) -> bool:
    """The tree's Python core does; its Rust core is held to the totals at the end."""
    return isinstance(tree.tree_core, UnifiedTreeCore)


def check_host(tags: Tags, tree: Any) -> None:
    """Raises AssertionError where a host page is free twice, lost, has two owners or holds KV of
    other tokens. Nothing may be on its way between the tiers.
    """
    if not shows_nodes(tree):
        return
    nodes = list(_nodes(tree.tree_core.root_node, []))
    for entry in tree.cache_controller.mem_pool_host.entries:
        pool, name = entry.host_pool, str(entry.name)
        held = []
        for node, path in nodes:
            slots = node.component_data[KINDS[name]].host_value
            if slots is None:
                continue
            slots = slots.numpy()
            held.append(slots)
            count = len(path) - int(tree.tree_core.is_eagle)
            numbers = tags.prefixes.of(path)[:count][-len(slots) :]
            found = _tags_of(pool, slots)
            assert (found == numbers).all(), f"host {name}: slots of other tokens"
        owned = np.concatenate([*held, np.empty(0, np.int64)])[:: pool.page_size]
        owned = owned // pool.page_size
        free = _free(pool)
        pages = np.sort(np.concatenate([owned, free]))
        twice = pages[1:][pages[1:] == pages[:-1]]
        assert not len(twice), f"host {name}: pages {twice} have two owners"
        missing = pool.size // pool.page_size - len(pages)
        assert missing == 0, f"host {name}: {missing} pages are lost"


def _nodes(node: Any, path: list[int]) -> Any:
    """(node, raw tokens from the root to its end) of every node below ``node``."""
    for child in node.children.values():
        raw = list(child.key.raw_token_ids())
        # Pairs of neighbours share the token at their boundary.
        whole = [*path, *(raw[1:] if child.key.is_bigram and path else raw)]
        yield child, whole
        yield from _nodes(child, whole)


def _tags_of(pool: Any, slots: np.ndarray) -> np.ndarray:
    """Tags in layer 0 of a host pool [pages, layers, page size, heads, width]."""
    layer: torch.Tensor = pool.k_buffer[:, 0]
    bits: np.ndarray = layer.contiguous().view(torch.int64).reshape(-1).numpy()
    return bits[slots]


def _free(pool: Any) -> np.ndarray:
    pool._merge_release_slots()
    free: np.ndarray = pool.free_slots.numpy()
    return free[:: pool.page_size] // pool.page_size
