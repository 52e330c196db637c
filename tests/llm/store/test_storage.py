"""SGLang's storage interface over the store, with host pools of the real classes' memory layout."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost

from llm.store.storage import NodeStorage, restorable_ends

PAGE, WINDOW = 4, 2
FACTS = {"weights": "a" * 64, "dtype": "float32"}


class Pool(SimpleNamespace):
    """A host pool: K and V of different widths, pages first."""

    get_page_buffer_meta = AsymmetricMHATokenToKVPoolHost.get_page_buffer_meta


def pool(layers: int, pages: int = 12, dtype: torch.dtype = torch.float32) -> Pool:
    heads, k, v = 2, 6, 4
    return Pool(
        layout="page_first_direct",
        page_size=PAGE,
        dtype=dtype,
        target_layer_num=layers,
        layer_num=layers,
        head_num=heads,
        head_dim=k,
        v_head_dim=v,
        k_buffer=torch.rand(pages, layers, PAGE, heads, k).to(dtype),
        v_buffer=torch.rand(pages, layers, PAGE, heads, v).to(dtype),
    )


def storage(
    folder: Path, *, facts: dict[str, Any] = FACTS, rank: tuple[int, int] = (0, 1), layers: int = 3
) -> NodeStorage:
    options = {
        "memory_path": None,
        "memory_bytes": 0,
        "disk_path": str(folder),
        "disk_bytes": 10_000_000,
        "timeout_s": 30.0,
        "facts": facts,
    }
    config = HiCacheStorageConfig(
        tp_rank=rank[0],
        tp_size=rank[1],
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="pocket",
        extra_config={"store": options},
    )
    found = NodeStorage(config)
    found.register_mem_pool_host(pool(1))
    found.register_mem_host_pool_v2(pool(layers), PoolName.SWA)
    return found


def hashes(count: int, start: int = 0) -> list[str]:
    return [f"{i:064x}" for i in range(start, start + count)]


def slots(*pages: int) -> torch.Tensor:
    return torch.cat([torch.arange(p * PAGE, (p + 1) * PAGE) for p in pages])


def window(keys: list[str], host: torch.Tensor | None = None) -> PoolTransfer:
    return PoolTransfer(PoolName.SWA, host, None, keys, PoolHitPolicy.TRAILING_PAGES)


def fill(kv: NodeStorage) -> None:
    """Six pages of kv; of swa the third and fourth, and the sixth alone."""
    keys = hashes(6)
    assert kv.batch_set_v1(keys, slots(*range(6))) == [True] * 6
    for pages in ([2, 3], [5]):
        sent = window([keys[p] for p in pages], slots(*pages))
        assert kv.batch_set_v2([sent]) == {PoolName.SWA: [True] * len(pages)}


def test_pages_come_back_in_other_slots(tmp_path: Path) -> None:
    first = storage(tmp_path)
    fill(first)
    again = storage(tmp_path)
    assert again.batch_get_v1(hashes(3), slots(9, 7, 8)) == [True] * 3
    read = window(hashes(2, 2), slots(0, 11))
    assert again.batch_get_v2([read]) == {PoolName.SWA: [True, True]}
    for name, pages in (("kv", {0: 9, 1: 7, 2: 8}), ("swa", {2: 0, 3: 11})):
        for source, target in pages.items():
            for part in ("k_buffer", "v_buffer"):
                before = getattr(first._pools[name], part)[source]
                assert torch.equal(getattr(again._pools[name], part)[target], before)


def test_a_prefix_can_be_had_where_its_window_is_there(tmp_path: Path) -> None:
    kv = storage(tmp_path)
    fill(kv)
    found = kv.batch_exists_v2(hashes(8), [window(["?"] * WINDOW)])
    assert found.kv_hit_pages == 4
    assert found.restorable_prefix_pages == [4]
    assert found.extra_pool_hit_pages == {"kv": 6, "swa": 4}
    assert kv.batch_exists(hashes(8)) == 6
    assert kv.batch_exists_v2(hashes(3), [window(["?"] * WINDOW)]).kv_hit_pages == 0
    assert kv.batch_exists_v2(hashes(6), [window(["?"])]).restorable_prefix_pages == [3, 4, 6]


@pytest.mark.parametrize(
    "other",
    [
        {"facts": FACTS | {"weights": "b" * 64}},
        {"facts": FACTS | {"dtype": "bfloat16"}},
        {"rank": (0, 2)},
        {"rank": (1, 2)},
    ],
)
def test_another_model_or_split_finds_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    fill(storage(tmp_path))
    assert storage(tmp_path).batch_exists(hashes(6)) == 6
    assert storage(tmp_path, **other).batch_exists(hashes(6)) == 0


def test_without_draft_layers_window_pages_are_others(tmp_path: Path) -> None:
    fill(storage(tmp_path))
    without = storage(tmp_path, layers=2)
    assert without.batch_exists_v2(hashes(6), [window(["?"])]).kv_hit_pages == 0


def test_touched_pages_are_noted(tmp_path: Path) -> None:
    kv = storage(tmp_path)
    fill(kv)
    index = kv.store.tiers["disk"]._opened().index
    key = kv._keys("kv", hashes(1))
    before = index.find(key)[key[0]].tick
    kv.touch(hashes(2))
    kv.close()
    assert storage(tmp_path).store.tiers["disk"]._opened().index.find(key)[key[0]].tick > before


def test_a_shared_store_is_not_cleared(tmp_path: Path) -> None:
    kv = storage(tmp_path)
    fill(kv)
    assert kv.clear() is False
    assert kv.batch_exists(hashes(6)) == 6


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=30), st.integers(1, 6))
def test_restorable_ends_as_defined(there: list[bool], pages: int) -> None:
    expected = {end for end in range(1, len(there) + 1) if all(there[max(0, end - pages) : end])}
    assert restorable_ends(there, pages) == expected
