"""Every page of both pools has exactly one owner, and the tree's counts say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from tests.llm.pool_machine_tags import Tags


def free_pages(allocator: Any) -> np.ndarray:
    """Page numbers on the free list of one pool (page 0 is padding and never on it)."""
    return allocator.free_pages.numpy()


def check_owners(tags: Tags, tree: Any, rows: list[tuple[Any, np.ndarray]]) -> None:
    """``rows`` are the running requests' KV records with their slots by position.

    Raises AssertionError where a page is free twice, lost, or has two owners, and where free +
    evictable + protected + held by requests differs from the pool's size.
    """
    allocator, page = tags.allocator, tags.page
    cached = np.asarray(tree.all_values_flatten()).astype(np.int64)[::page]
    held, held_window = [], []
    for kv, slots in rows:
        first = slots[kv.cache_protected_len : kv.kv_allocated_len : page]
        held.append(first)
        dead = max(0, kv.get_evicted_seqlen(ComponentType.SWA) - kv.cache_protected_len)
        held_window.append(first[-(-dead // page) :])
    private = np.concatenate([*held, np.empty(0, np.int64)])
    window = np.concatenate([*held_window, np.empty(0, np.int64)])
    behind = tags.window_slots(window)
    assert (behind > 0).all(), "a request holds a full slot whose window slot is gone early"
    live = tags.window_slots(cached)
    live = live[live > 0]
    pools = (
        ("full", allocator.full_attn_allocator, cached, private, allocator.size_full),
        ("window", allocator.swa_attn_allocator, live, behind, allocator.size_swa),
    )
    counts = {
        "full": tree.full_evictable_size() + tree.full_protected_size(),
        "window": tree.swa_evictable_size() + tree.swa_protected_size(),
    }
    for name, pool, of_tree, of_requests, size in pools:
        free = free_pages(pool)
        owned = np.concatenate([free, of_tree // page, of_requests // page])
        pages = np.sort(owned)
        twice = pages[1:][pages[1:] == pages[:-1]]
        assert not len(twice), f"{name} pool: pages {twice} have two owners"
        every = np.arange(1, size // page + 1)
        assert np.array_equal(pages, every), f"{name} pool: pages are lost"
        assert counts[name] == len(of_tree) * page, f"{name} pool: the tree counts wrong"
        total = pool.available_size() + counts[name] + len(of_requests) * page
        assert total == size, f"{name} pool: {total} slots accounted for, of {size}"
    tags.forget(*(free_pages(pool) for _, pool, *_ in pools))
