"""The simulator against the live application: TTFT and hit rate of one multi-turn trace.

Two language-model replicas on this machine serve conversations with the turns, lengths and order of
arrival of Mooncake's. The simulator gets the same arrivals, the production router and queue with
the same settings, the pools the engines have, and a cost model fitted to other chats that the same
application answered just before (`bench/live_cost.py`). Nothing of the trace itself is fitted.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from app.settings import Settings, checkpoint_directory, load_settings
from bench.chats import CONFIG, Answer, replicas
from bench.live_cost import alone_s, fitted, measure, processors
from bench.live_trace import Call, Messages, calls, replay, workload
from bench.result import Bar, Figure, Result
from llm.arguments import pool_choice
from llm.queue.policy import QueuePolicy
from llm.router.policy import RoutingPolicy
from tools.replay import traces
from tools.replay.cluster import Cluster, Setup
from tools.replay.cost import CostModel
from tools.replay.geometry import V25, Geometry, Pools
from tools.replay.production import ComputeAware, KvAffinity
from tools.replay.replica import Limits
from tools.replay.results import Results
from tools.replay.workload import Workload

REPLICAS = 2
SHRINK = 24.0
# Of the machine's processors, which gateway, engines and this client share: the simulator knows
# that engines slow each other down, not that everything does.
LOAD = 0.15
ANSWER_TOKENS = 8
ROUNDS = 3
POINTS = (50, 90)


def run(quick: bool) -> Result:
    sessions = 14 if quick else 40
    settings = load_settings(CONFIG)
    chunk = settings.llm.chunked_prefill_size
    trace = calls(traces.load("conversation"), sessions, SHRINK, seed=0)
    encode = _encoder(settings)
    with replicas(REPLICAS, "kv_affinity") as url:
        counted = measure(url, REPLICAS, ROUNDS, chunk, lambda messages: len(encode(messages)))
        readings = asyncio.run(counted)
        cost = fitted(readings, REPLICAS, chunk)
        spent = processors(readings, cost, chunk)
        work = spent * _work(trace, [encode(call.messages) for call in trace], cost, chunk)
        trace = _spread(trace, work / (LOAD * (os.cpu_count() or 1)))
        trace, answers = asyncio.run(replay(url, trace, ANSWER_TOKENS))
    prompts = [encode(call.messages) for call in trace]
    for answer, prompt in zip(answers, prompts, strict=True):
        if answer.prompt != len(prompt):
            raise RuntimeError(f"the engine counts {answer.prompt} tokens, not {len(prompt)}")
    simulated = _simulate(settings, cost, workload("live", trace, prompts, ANSWER_TOKENS))
    return _result(trace, answers, simulated, cost)


def _result(
    trace: Sequence[Call], answers: Sequence[Answer], simulated: Results, cost: CostModel
) -> Result:
    tokens = sum(answer.prompt for answer in answers)
    live = dict(zip(POINTS, np.percentile([a.ttft for a in answers], POINTS), strict=True))
    model = dict(zip(POINTS, np.percentile(simulated.ttft, POINTS), strict=True))
    hits = sum(answer.cached for answer in answers) / tokens
    sides = {f"ttft_p{p}_ms": (live[p] * 1e3, model[p] * 1e3) for p in POINTS}
    sides["hit_rate"] = (hits, simulated.hit_rate)
    figures: dict[str, Figure | float] = {}
    bars: dict[str, Bar] = {}
    for name, (measured, found) in sides.items():
        figures[f"live_{name}"], figures[f"simulated_{name}"] = float(measured), float(found)
        bars[f"{name}_error"] = Bar(abs(float(found) / float(measured) - 1), at_most=0.15)
    for name in ("fixed_s", "gateway_s", "step_s", "token_s", "pair_s", "decode_step_s"):
        figures[f"fitted_{name.removesuffix('_s')}_us"] = getattr(cost, name) * 1e6
    figures["fitted_crowding"] = cost.crowding
    figures["live_output_tokens"] = float(np.mean([a.tokens for a in answers]))
    figures["simulated_prefill_busy"] = simulated.utilisation
    sizes: dict[str, Any] = {
        "replicas": REPLICAS,
        "requests": len(trace),
        "sessions": len({call.session for call in trace}),
        "seconds": round(trace[-1].at),
        "mean_prompt_tokens": round(tokens / len(answers)),
        "aimed_load": LOAD,
    }
    return Result(sizes, figures, bars)


def _encoder(settings: Settings) -> Callable[[Messages], list[int]]:
    """Token ids of a chat as the application renders it."""
    path = str(checkpoint_directory(settings))
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=True)

    def encode(messages: Messages) -> list[int]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return ids

    return encode


def _work(
    trace: Sequence[Call], prompts: Sequence[list[int]], cost: CostModel, chunk: int
) -> float:
    """Seconds that the model gives all the calls, each alone."""
    before: dict[int, int] = {}
    work = 0.0
    for call, prompt in zip(trace, prompts, strict=True):
        hit = before.get(call.session, 0)
        work += alone_s(cost, len(prompt), hit, ANSWER_TOKENS, chunk)
        before[call.session] = len(prompt)
    return work


def _spread(trace: Sequence[Call], seconds: float) -> list[Call]:
    """The calls in so many seconds."""
    first, last = trace[0].at, trace[-1].at
    return [replace(call, at=(call.at - first) * seconds / (last - first)) for call in trace]


def _simulate(settings: Settings, cost: CostModel, offered: Workload) -> Results:
    llm = settings.llm
    plain = llm.model_dump() | {"model_path": str(checkpoint_directory(settings))}
    found = pool_choice(plain)
    assert found.pools is not None
    config = json.loads((Path(plain["model_path"]) / "config.json").read_text())
    pools = Pools(found.pools.full_tokens, found.pools.swa_tokens // found.kv.window)
    limits = Limits(llm.chunked_prefill_size, llm.max_running_requests)
    period = llm.router.report_period_s
    setup = Setup(_geometry(config, found.kv.window), cost, pools, REPLICAS, limits, period)
    options = llm.router.router_arguments()
    pairs = int(options.pop("max_pairs"))
    order = QueuePolicy(llm.queue.penalty, llm.queue.head_start_tokens)
    cluster = Cluster(
        setup,
        offered,
        lambda fleet: KvAffinity(fleet, offered.block_tokens, RoutingPolicy(**options), pairs),
        lambda: ComputeAware(order, llm.queue.chunk_share),
    )
    results = cluster.run()
    cluster.check()
    return results


def _geometry(config: dict[str, Any], window: int) -> Geometry:
    """What a simulation without lower tiers reads of a model: its layers and its window."""
    pattern = config["hybrid_layer_pattern"]
    return replace(
        V25,
        name=config["model_type"],
        full_layers=pattern.count(0),
        window_layers=pattern.count(1),
        full_heads=pattern.count(0) * config["num_key_value_heads"],
        window_heads=pattern.count(1) * config["swa_num_key_value_heads"],
        key_dim=config["head_dim"],
        value_dim=config["v_head_dim"],
        window=window,
    )
