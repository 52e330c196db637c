"""Sizes of the KV pools: the formula, the budget, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.pool_choice import choose
from llm.pools import KvGeometry, PoolDemand, PoolError, check_pools, geometry, plan

V25: dict[str, Any] = {
    "hybrid_layer_pattern": [0] * 9 + [1] * 39,
    "num_key_value_heads": 4,
    "swa_num_key_value_heads": 8,
    "head_dim": 192,
    "swa_head_dim": 192,
    "v_head_dim": 128,
    "swa_v_head_dim": 128,
    "sliding_window": 128,
}
MIB = 1 << 20


def test_sequence_bytes_are_those_of_the_published_model() -> None:
    """mimo-v2.md section 9: V2.5 in bfloat16 and fp8."""
    kv = geometry(V25, "bfloat16")
    assert (kv.full_bytes, kv.swa_bytes, kv.window) == (23_040, 199_680, 129)
    for tokens, mib in ((4096, 114.6), (32_768, 744.6), (262_144, 5.65 * 1024)):
        assert kv.sequence_bytes(tokens) / MIB == pytest.approx(mib, rel=1e-3)
    assert geometry(V25, "fp8_e4m3").sequence_bytes(4096) / MIB == pytest.approx(57.3, rel=1e-3)
    assert kv.sequence_bytes(100) == 100 * (23_040 + 199_680)


def test_heads_spread_over_devices_and_draft_layers_count() -> None:
    alone = geometry(V25, "bfloat16")
    assert geometry(V25, "bfloat16", tensor_parallel=4).full_bytes == alone.full_bytes // 4
    # More devices than heads: each holds one.
    assert geometry(V25, "bfloat16", tensor_parallel=16).full_bytes == alone.full_bytes // 4
    assert geometry(V25, "bfloat16", draft_layers=3).swa_bytes == 42 * 5_120


demands = st.builds(
    PoolDemand,
    running=st.integers(1, 64),
    chunk=st.sampled_from([64, 512, 4096]),
    page=st.sampled_from([1, 4, 16, 64]),
    draft_tokens=st.sampled_from([1, 4]),
    interval=st.sampled_from([1, 32, 128]),
    typical_tokens=st.integers(16, 20_000),
)
geometries = st.builds(
    KvGeometry,
    full_bytes=st.integers(1, 3000),
    swa_bytes=st.integers(1, 20_000),
    window=st.sampled_from([5, 33, 129]),
)


@settings(max_examples=300)
@given(geometries, demands, st.integers(1 << 20, 1 << 33))
def test_pools_keep_to_the_budget_and_hold_what_they_promise(
    kv: KvGeometry, demand: PoolDemand, budget: int
) -> None:
    try:
        pools = plan(budget, kv, demand)
    except PoolError:
        return
    assert pools.full_tokens % demand.page == pools.swa_tokens % demand.page == 0
    used = pools.full_tokens * kv.full_bytes + pools.swa_tokens * kv.swa_bytes
    assert used == pools.bytes <= budget
    assert pools.swa_tokens <= pools.full_tokens
    engine = int(pools.full_tokens * pools.ratio) // demand.page * demand.page
    assert engine == pools.swa_tokens
    if pools.swa_tokens < pools.full_tokens:
        # Every conversation in the full pool, every window in the SWA pool, at the same time.
        assert pools.conversations * demand.typical_tokens <= pools.full_tokens
        waiting = pools.conversations - demand.running
        held = demand.running_slots(kv.window) + waiting * demand.tail_slots(kv.window)
        assert held <= pools.swa_tokens
        check_pools(pools.full_tokens, pools.swa_tokens, kv, demand)
        # And not one more.
        one = demand.typical_tokens * kv.full_bytes + demand.tail_slots(kv.window) * kv.swa_bytes
        page_slack = demand.page * (2 * kv.swa_bytes + (pools.conversations + 2) * kv.full_bytes)
        assert budget - pools.conversations * one < one + page_slack + kv.swa_bytes * held


def demand(**changes: int) -> PoolDemand:
    usual = {"running": 8, "chunk": 512, "page": 1, "draft_tokens": 4, "interval": 32}
    return PoolDemand(**(usual | {"typical_tokens": 2048} | changes))


def test_a_budget_that_is_too_small_says_why() -> None:
    kv = KvGeometry(full_bytes=1920, swa_bytes=10_240, window=33)
    with pytest.raises(PoolError, match=r"hold \d conversations of 2048 tokens, and 8 shall run"):
        plan(20 << 20, kv, demand())
    with pytest.raises(PoolError, match=r"SWA pool of 300 tokens; it must be at least 1889: 8 run"):
        check_pools(8192, 300, kv, demand())


def test_longer_conversations_make_the_full_pool_larger() -> None:
    kv = geometry(V25, "bfloat16")
    short, long = (
        plan(40 << 30, kv, demand(interval=128, typical_tokens=tokens)) for tokens in (4096, 65_536)
    )
    assert short.full_tokens < long.full_tokens
    assert short.ratio > 5 * long.ratio
    assert long.conversations * kv.sequence_bytes(65_536) > 0.9 * (40 << 30)


def section(**changes: Any) -> dict[str, Any]:
    return {
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "tensor_parallel": 8,
        "attention_data_parallel": 2,
        "max_running_requests": 128,
        "chunked_prefill_size": 16_384,
        "page_size": 64,
        "mtp": {"enabled": True, "steps": 3},
        "max_total_tokens": None,
        "swa_full_tokens_ratio": None,
        "typical_tokens": 8192,
        **changes,
    }


def test_the_ratio_follows_where_the_engine_fills_device_memory() -> None:
    choice = choose(section(), V25)
    assert choice.tokens is None
    assert choice.interval == 128
    assert 0.1 < choice.ratio < 0.2  # recommended by hand for this model: 0.1 to 0.3
    assert choose(section(typical_tokens=65_536), V25).ratio < 0.05
    assert choose(section(swa_full_tokens_ratio=0.3), V25).ratio == 0.3


def test_the_shipped_configuration_holds_its_running_requests() -> None:
    from app.settings.load import load_settings

    config = json.loads(Path("models/pocket/config.json").read_text())
    llm = load_settings(Path("configs/pocket.yaml")).llm
    choice = choose(llm.model_dump(), config)
    assert choice.pools is not None
    assert choice.tokens == choice.pools.full_tokens >= (llm.context_length or 0)
    assert choice.pools.conversations >= llm.max_running_requests
    assert "conversations of 2048 tokens" in choice.sentence()
