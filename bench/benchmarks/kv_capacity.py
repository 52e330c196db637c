"""Tokens admitted at once per byte of KV: two pools against one, by context length.

Every engine gets the same bytes of KV and more requests than they hold; counted are the requests
that run at the same time, prompt and answer complete. Two pools are sized for the length in
question (llm/pools.py). One pool is what an engine without window-aware memory has: a slot of
every layer for every token. The bound is bytes / KV(L), KV(L) = F * L + S * min(L, W). MTP is off,
so that L is exact.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from app.settings import checkpoint_directory, config_path, load_settings
from bench.result import Bar, Figure, Result
from llm import engine
from llm.arguments import engine_arguments, pool_choice
from llm.pools import KvGeometry

ANSWER = 16
BYTES = 1 << 27
SLACK = 1.5  # requests asked for, over the bound
BAR = 0.95


def run(quick: bool) -> Result:
    lengths = (1024, 4096) if quick else (1024, 4096, 12_288)
    figures: dict[str, Figure | float] = {}
    bars: dict[str, Bar] = {}
    for length in lengths:
        kv, two, one = _settings(length)
        bound = BYTES / kv.sequence_bytes(length)
        asked = int(SLACK * bound) + 1
        running = {
            name: _admitted(settings, length, asked)
            for name, settings in (("two_pools", two), ("one_pool", one))
        }
        for name, count in running.items():
            figures[f"{name}_{length}_requests"] = float(count)
            figures[f"{name}_{length}_tokens_per_mib"] = count * length / (BYTES / 2**20)
        figures[f"bound_{length}_requests"] = bound
        figures[f"ratio_{length}"] = running["two_pools"] / running["one_pool"]
        # Whole requests only: the bound is what so many bytes can hold of them.
        bars[f"share_of_bound_{length}"] = Bar(running["two_pools"] / int(bound), at_least=BAR)
    sizes = {"bytes": BYTES, "lengths": lengths, "answer": ANSWER, "mtp": False}
    return Result(sizes, figures, bars)


def _settings(length: int) -> tuple[KvGeometry, dict[str, Any], dict[str, Any]]:
    """KV geometry, and the ``llm`` sections with two pools and with one, for contexts of
    ``length`` tokens."""
    settings = load_settings(config_path(None))
    base = settings.llm.model_dump() | {
        "model_path": str(checkpoint_directory(settings)),
        "served_name": settings.model.served_name,
        "mtp": settings.llm.mtp.model_dump() | {"enabled": False},
        "swa_eviction_interval": 1,
        "kv_bytes": BYTES,
        "typical_tokens": length,
        "max_running_requests": 1,
    }
    kv = pool_choice(base).kv
    two = base
    for running in range(int(BYTES / kv.sequence_bytes(length)), 0, -1):
        try:
            two = base | {"max_running_requests": running}
            pool_choice(two)
            break
        except ValueError:
            continue
    tokens = BYTES // (kv.full_bytes + kv.swa_bytes)
    one = base | {
        "kv_bytes": None,
        "max_total_tokens": tokens,
        "swa_full_tokens_ratio": 1.0,
        "max_running_requests": max(1, tokens // length),
    }
    return kv, two, one


def _admitted(settings: dict[str, Any], length: int, requests: int) -> int:
    """Most requests that ran at the same time, of ``requests`` asked for."""
    engine.prepare(settings)
    running = engine.start(
        engine_arguments(settings | {"queue": settings["queue"] | {"policy": "fcfs"}})
    )
    try:
        return running.loop.run_until_complete(_most(running, length, requests))
    finally:
        running.shutdown()


async def _most(running: Any, length: int, requests: int) -> int:
    manager = running.tokenizer_manager
    sampling = {"temperature": 0.0, "max_new_tokens": ANSWER, "ignore_eos": True}
    # Different from the first token on: nothing is shared.
    prompts = [[i % 250, *([(7 * i) % 250] * (length - ANSWER - 1))] for i in range(requests)]
    answers = asyncio.gather(
        *(running.async_generate(input_ids=ids, sampling_params=sampling) for ids in prompts)
    )
    most, deadline = 0, time.monotonic() + 600
    while not answers.done():
        (load,) = await manager.get_loads()
        most = max(most, load.num_running_reqs)
        if time.monotonic() > deadline:
            raise RuntimeError(json.dumps({"stuck_at": most, "requests": requests}))
        await asyncio.sleep(0.005)
    await answers
    return most
