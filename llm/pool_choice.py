"""From the ``llm`` section of the settings and a checkpoint to the sizes of the KV pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm.pools import KvGeometry, PoolDemand, Pools, check_pools, geometry, plan

DEFAULT_INTERVAL = 128  # SGLang's own
DEFAULT_TYPICAL = 4096


@dataclass(frozen=True)
class PoolChoice:
    """What the engine is given. ``tokens``: of the full pool (None: as many as device memory
    allows); ``pools``: both pools where they are known before the start."""

    tokens: int | None
    ratio: float
    interval: int
    pools: Pools | None
    kv: KvGeometry
    demand: PoolDemand

    def sentence(self) -> str:
        """For the log: sizes and what they hold."""
        if self.pools is None:
            return f"KV pools fill the device's memory, {self.ratio:.3f} SWA slots per full slot"
        pools, typical = self.pools, self.demand.typical_tokens
        return (
            f"KV pools: {pools.full_tokens} full and {pools.swa_tokens} SWA slots, "
            f"{pools.bytes / 1e6:.1f} MB, {pools.conversations} conversations of {typical} tokens"
        )


def choose(settings: Mapping[str, Any], config: Mapping[str, Any]) -> PoolChoice:
    """Pools for the ``llm`` section as plain data and the checkpoint's ``config.json``.

    Raises PoolError where they could not hold the running requests.
    """
    mtp = settings["mtp"]
    kv_type = settings["kv_cache_dtype"]
    kv = geometry(
        config,
        settings["dtype"] if kv_type == "auto" else kv_type,
        settings["tensor_parallel"] // settings["attention_data_parallel"],
        mtp["steps"] if mtp["enabled"] else 0,
    )
    demand = PoolDemand(
        running=max(1, settings["max_running_requests"] // settings["attention_data_parallel"]),
        chunk=settings["chunked_prefill_size"],
        page=settings["page_size"],
        draft_tokens=mtp["steps"] + 1 if mtp["enabled"] else 1,
        interval=settings.get("swa_eviction_interval") or min(DEFAULT_INTERVAL, kv.window - 1),
        typical_tokens=settings.get("typical_tokens") or DEFAULT_TYPICAL,
    )
    tokens, ratio = settings["max_total_tokens"], settings["swa_full_tokens_ratio"]
    budget = settings.get("kv_bytes")
    if budget:
        pools = plan(budget, kv, demand)
        return PoolChoice(pools.full_tokens, pools.ratio, demand.interval, pools, kv, demand)
    if ratio is None:
        ratio = smallest_ratio(kv, demand, tokens)
    if tokens is None:
        return PoolChoice(None, ratio, demand.interval, None, kv, demand)
    swa = int(tokens * ratio)
    check_pools(tokens, swa, kv, demand)
    size = tokens * kv.full_bytes + swa * kv.swa_bytes
    pools = Pools(tokens, swa, size, tokens // demand.typical_tokens)
    return PoolChoice(tokens, ratio, demand.interval, pools, kv, demand)


def smallest_ratio(kv: KvGeometry, demand: PoolDemand, tokens: int | None) -> float:
    """SWA slots per full slot at which both pools run full together.

    Where the full pool's size is not known yet: that of running requests of typical length alone,
    which is the larger one.
    """
    full = demand.running * demand.typical_tokens
    swa = demand.running_slots(kv.window)
    if tokens is not None and tokens > full:
        waiting = (tokens - full) // demand.typical_tokens
        full, swa = tokens, swa + waiting * demand.tail_slots(kv.window)
    return min(1.0, (swa + 0.5) / (tokens or full))
