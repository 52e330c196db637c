"""Multi-turn conversations from a trace: time to first token with the KV tiers against no cache.

Prompts follow Mooncake's conversation trace (FAST25 release, Apache-2.0) at a quarter of its
length: every block of 512 tokens becomes 8 pages of 16 tokens that follow from the block's id, and
a prompt ends in a few tokens of its own. Conversations of three to ten turns are taken from the
trace's beginning and sent in its order, one at a time, to two engines in turn: one with L1, L2 and
L3, one without any cache. The second pass starts with L1 and L2 empty, so that prefixes come from
the store. The bound on hits is that of an infinite cache: the longest beginning of a prompt whose
blocks were all sent before. Answers of both engines must be equal.
"""

from __future__ import annotations

import collections
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import httpx
import numpy as np

from app.settings import checkpoint_directory, config_path, load_settings
from app.settings.tiers import TierSettings
from bench.result import Bar, Figure, Result
from bench.sglang_server import sglang_server
from llm.arguments import engine_arguments
from tools.replay.traces import MOONCAKE, folder

PLACES = ("/dev/shm", "/var/tmp")
TRACE_BLOCK = 512
PAGE = 16
BLOCK = 8 * PAGE
TAIL = 7
TURNS = (3, 10)
BLOCKS = (4, 64)
# A page before round positions: keys of token pairs end a token before the text they share.
TAILS = [n - PAGE for n in (128, 512, 1024, 2048, 4096)]
TIERS = ("device", "host", "storage")
HIT_BAR = 0.95


def run(quick: bool) -> Result:
    chats = conversations(4 if quick else 12)
    prompts = [prompt(blocks, i) for i, blocks in enumerate(chats)]
    with ExitStack() as stack:
        rooms = [stack.enter_context(tempfile.TemporaryDirectory(dir=d)) for d in PLACES]
        tiers = _server(stack, _tiers(*rooms))
        plain = _server(stack, {"extra_engine_args": {"disable_radix_cache": True}})
        for i in range(4):
            for url in (tiers, plain):
                _ask(url, prompt([10**9 + i] * 8, i))
        first = _passes(prompts, tiers, plain)
        time.sleep(2.0)
        httpx.post(f"{tiers}/flush_cache", timeout=60).raise_for_status()
        second = _passes(prompts, tiers, plain)
    return _result(chats, first, second)


def conversations(count: int) -> list[list[int]]:
    """The blocks of each request of the first ``count`` conversations, in the trace's order."""
    trace = folder() / MOONCAKE["conversation"]
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    groups: dict[int, list[tuple[int, list[int]]]] = collections.defaultdict(list)
    for at, row in enumerate(rows):
        blocks = row["hash_ids"][: row["input_length"] // TRACE_BLOCK]
        if BLOCKS[0] <= len(blocks) <= BLOCKS[1]:
            # The first block is the system prompt of all; the second tells conversations apart.
            groups[blocks[1]].append((at, blocks))
    chosen = [g for g in groups.values() if TURNS[0] <= len(g) <= TURNS[1]][:count]
    return [blocks for _, blocks in sorted(turn for group in chosen for turn in group)]


def prompt(blocks: Sequence[int], own: int) -> list[int]:
    """Token ids of a request: those of its blocks and a short end of its own."""
    text = [np.random.default_rng(block).integers(0, 700, BLOCK) for block in blocks]
    end = np.random.default_rng([own, 1]).integers(0, 700, TAIL)
    return [int(token) for token in np.concatenate([*text, end])]


def bound(chats: Sequence[Sequence[int]]) -> list[int]:
    """Prompt tokens of each request that an infinite cache would have."""
    seen: set[int] = set()
    found = []
    for blocks in chats:
        known = 0
        while known < len(blocks) and blocks[known] in seen:
            known += 1
        found.append(known * BLOCK)
        seen.update(blocks)
    return found


def _tiers(memory: str, disk: str) -> dict[str, Any]:
    section = {
        "host": {"ratio": 2.0},
        "store": {
            "memory_path": memory,
            "memory_bytes": 2**28,
            "disk_path": disk,
            "disk_bytes": 2**32,
            "min_tokens": PAGE,
        },
        "swa_tails": TAILS,
    }
    return {"tiers": TierSettings.model_validate(section).model_dump()}


def _server(stack: ExitStack, changes: dict[str, Any]) -> str:
    settings = load_settings(config_path(None))
    llm = settings.llm.model_dump() | {
        "model_path": str(checkpoint_directory(settings)),
        "served_name": settings.model.served_name,
        "page_size": PAGE,
        "max_running_requests": 2,
        # L1 holds a few conversations, L2 some more, L3 all of them.
        "kv_bytes": None,
        "max_total_tokens": 16384,
        "swa_full_tokens_ratio": 0.25,
    }
    return stack.enter_context(sglang_server(engine_arguments(llm | changes)))


def _ask(url: str, ids: Sequence[int]) -> tuple[float, dict[str, int], list[int]]:
    """Seconds to the first token, the cached tokens by tier, and the token."""
    body = {"input_ids": list(ids), "sampling_params": {"temperature": 0.0, "max_new_tokens": 1}}
    began = time.perf_counter()
    reply = httpx.post(f"{url}/generate", json=body, timeout=120).raise_for_status()
    took = time.perf_counter() - began
    answer = reply.json()
    details = answer["meta_info"].get("cached_tokens_details") or {}
    return took, {tier: int(details.get(tier, 0)) for tier in TIERS}, answer["output_ids"]


def _passes(prompts: Sequence[list[int]], tiers: str, plain: str) -> list[dict[str, Any]]:
    """Every prompt on both engines, the first one alternating."""
    found = []
    for i, ids in enumerate(prompts):
        sides = {"tiers": tiers, "plain": plain}
        order = list(sides) if i % 2 else list(sides)[::-1]
        asked = {side: _ask(sides[side], ids) for side in order}
        if asked["tiers"][2] != asked["plain"][2]:
            raise RuntimeError(f"request {i}: a hit changed the answer, {asked}")
        found.append(
            {side: took for side, (took, *_) in asked.items()} | {"cached": asked["tiers"][1]}
        )
    return found


def _result(
    chats: Sequence[Sequence[int]],
    first: Sequence[dict[str, Any]],
    second: Sequence[dict[str, Any]],
) -> Result:
    bounds = bound(chats)
    hits = [
        min(sum(seen["cached"].values()), most) for seen, most in zip(first, bounds, strict=True)
    ]
    kinds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ("miss", *TIERS)}
    for seen in (*first, *second):
        used = [tier for tier in TIERS if seen["cached"][tier]]
        kinds[used[-1] if used else "miss"].append(seen)
    result = Result(
        sizes={
            "requests": len(chats),
            "prompt_tokens": sum(len(blocks) * BLOCK + TAIL for blocks in chats),
            "page": PAGE,
            **{f"from_{kind}": len(seen) for kind, seen in kinds.items()},
        }
    )
    result.figures["bound_of_tokens"] = sum(bounds) / result.sizes["prompt_tokens"]
    result.figures["hit_of_bound"] = sum(hits) / sum(bounds)
    result.bars["hit_of_bound"] = Bar(sum(hits) / sum(bounds), at_least=HIT_BAR)
    for kind, readings in kinds.items():
        if not readings:
            continue
        for side in ("tiers", "plain"):
            result.figures[f"{kind}_{side}_ttft_ms"] = Figure.of([1e3 * r[side] for r in readings])
        speed = statistics.median(r["plain"] / r["tiers"] for r in readings)
        result.figures[f"{kind}_speedup"] = speed
        if kind != "miss":
            result.bars[f"{kind}_hit_against_none"] = Bar(speed, at_least=1.0)
    return result
