"""The questions that ``python -m tools.replay`` answers, each as a table of figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tools.replay.buckets import bucketed, split
from tools.replay.fleets import OUR_QUEUE, OURS, at_load, fleet, simulate
from tools.replay.queues import BASELINES as QUEUES
from tools.replay.results import Results
from tools.replay.routers import BASELINES as ROUTERS
from tools.replay.workload import Workload

Row = dict[str, float | str]
Say = Callable[[str], None]


@dataclass
class Answer:
    """A table and what it was made with. ``plot``: columns for the x axis and for bars or lines;
    an x column of numbers is drawn as lines."""

    title: str
    setup: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    plot: tuple[str, tuple[str, ...]] = ("", ())


def _describe(workload: Workload, **more: object) -> dict[str, str]:
    return {
        "workload": f"{workload.name}: {len(workload):,} requests in {workload.seconds:,.0f} s, "
        f"{workload.input_tokens.mean():,.0f} input tokens on average; {'; '.join(workload.notes)}",
        **{name.replace("_", " "): str(value) for name, value in more.items()},
    }


def compare(
    workload: Workload, nodes: int, load: float | None, model: str, host_gb: float, say: Say
) -> Answer:
    """Routers, with the production queue, and queues, with the production router."""
    setup = fleet(nodes, model, host_gb=host_gb)
    offered = workload if load is None else at_load(setup, workload, load)
    answer = Answer(
        "Which router and which queue?",
        _describe(offered, nodes=nodes, model=model, load=load or "as recorded", host_gb=host_gb),
        plot=("policy", ("hit rate", "TTFT p90 s")),
    )
    pairs = [(router, OUR_QUEUE) for router in [OURS, *ROUTERS]]
    pairs += [(OURS, queue) for queue in QUEUES]
    for router, queue in pairs:
        say(f"{router}, {queue}")
        row = simulate(setup, offered, router, queue).row()
        answer.rows.append({"policy": f"{router} / {queue}", **row})
    return answer


def capacity(
    workload: Workload, ttft_s: float, share: float, model: str, host_gb: float, say: Say
) -> Answer:
    """The fewest nodes that keep ``share`` of all TTFT within ``ttft_s``."""
    answer = Answer(
        f"How many nodes keep {share:.0%} of first tokens within {ttft_s:g} s?",
        _describe(workload, model=model, host_gb=host_gb),
        plot=("nodes", ("TTFT s", "prefill busy")),
    )
    tried: dict[int, float] = {}

    def late(nodes: int) -> float:
        if nodes not in tried:
            say(f"{nodes} nodes")
            results = simulate(fleet(nodes, model, host_gb=host_gb), workload)
            tried[nodes] = float(np.quantile(results.ttft, share))
            answer.rows.append({"nodes": nodes, "TTFT s": tried[nodes], **results.row()})
        return tried[nodes]

    high = 1
    while late(high) > ttft_s:
        if high >= 1 << 14:
            raise ValueError(f"even {high} nodes do not keep TTFT within {ttft_s:g} s")
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if late(middle) > ttft_s:
            low = middle
        else:
            high = middle
    answer.rows.sort(key=lambda row: float(row["nodes"]))
    answer.sentences.append(f"{high} nodes: {share:.0%} of TTFT within {tried[high]:.3f} s.")
    return answer


def window(workload: Workload, nodes: int, load: float, model: str, say: Say) -> Answer:
    """The model with its sliding windows, against the same layers attending to everything."""
    windowed = fleet(nodes, model)
    offered = at_load(windowed, workload, load)
    answer = Answer(
        "What does the sliding window buy?",
        _describe(offered, nodes=nodes, model=model, load=load),
        plot=("variant", ("input tok/s", "hit rate")),
    )
    for name, setup in (
        ("window, dual pools", windowed),
        ("window, kept only at ends of prompts and chunks", fleet(nodes, model, dense_every=0)),
        ("no window", fleet(nodes, model, window=False)),
    ):
        say(name)
        answer.rows.append(
            {
                "variant": name,
                "KV tokens per node": setup.pools.full_tokens,
                **simulate(setup, offered).row(),
            }
        )
    return answer


def tiers(
    workload: Workload,
    nodes: int,
    load: float,
    model: str,
    host_gb: float,
    store_gb: float,
    say: Say,
) -> Answer:
    """Device only, with host memory, and with a store; with and without affinity."""
    offered = at_load(fleet(nodes, model), workload, load)
    answer = Answer(
        "What does a tier buy?",
        _describe(
            offered,
            nodes=nodes,
            model=model,
            load=load,
            host_GB_per_node=host_gb,
            store_GB=store_gb,
        ),
        plot=("tiers", ("hit rate", "TTFT p90 s")),
    )
    for router in (OURS, "power-of-two"):
        for name, host, store in (
            ("L1", 0.0, 0.0),
            ("L1 + L2", host_gb, 0.0),
            ("L1 + L2 + L3", host_gb, store_gb),
        ):
            say(f"{router}, {name}")
            results = simulate(fleet(nodes, model, host_gb=host, store_gb=store), offered, router)
            total = float(offered.input_tokens.sum())
            answer.rows.append(
                {
                    "tiers": f"{name}, {router}",
                    "from L2": float(results.host.sum()) / total,
                    "from L3": float(results.store.sum()) / total,
                    **results.row(),
                }
            )
    return answer


def buckets(
    workload: Workload, engines: int, ranks: int, gpus: int, model: str, say: Say
) -> Answer:
    """All prompts there at once, on mixed engines and on engines split by length."""
    setup = fleet(engines, model, ranks=ranks, gpus=gpus, decodes=False)
    prompts = workload.at_once()
    parts = split(setup, prompts)
    answer = Answer(
        "What do length buckets buy?",
        _describe(
            prompts,
            engines=engines,
            ranks_per_engine=ranks,
            GPUs_per_engine=gpus,
            model=model,
            engines_of_0_64K_256K_1M=parts,
        ),
        plot=("engines", ("input tok/s",)),
    )

    def add(name: str, results: Results) -> None:
        answer.rows.append({"engines": name, **results.row()})

    for queue in ("fcfs", OUR_QUEUE):
        say(queue)
        add(f"mixed, {queue}", simulate(setup, prompts, queue=queue))
        add(f"buckets, {queue}", bucketed(setup, prompts, parts, queue=queue))
        mixed, separate = (float(row["input tok/s"]) for row in answer.rows[-2:])
        answer.sentences.append(f"{queue}: buckets give {separate / mixed:.2f}x the throughput.")
    return answer


def scale(
    workload: Workload,
    sizes: Sequence[int],
    model: str,
    report_s: float,
    coarser: int,
    say: Say,
) -> Answer:
    """As many copies of the workload as nodes allow: does the router hold its hit rate?"""
    answer = Answer(
        "Does it hold at cluster size?",
        _describe(
            workload,
            model=model,
            report_s=report_s,
            tokens_per_block=workload.block_tokens * coarser,
        ),
        plot=("nodes", ("hit rate", "TTFT p90 s")),
    )
    for nodes in sizes:
        say(f"{nodes} nodes")
        many = workload.coarser(coarser).copies(max(1, nodes // sizes[0]), seed=0)
        start = time.perf_counter()
        results = simulate(fleet(nodes, model, report_s=report_s), many)
        spent = time.perf_counter() - start
        answer.rows.append(
            {"nodes": nodes, "requests": len(many), "simulated in s": spent, **results.row()}
        )
    return answer
