"""Input throughput with and without length buckets, on a mix of prompts up to 1M tokens.

Simulated (tools/replay): 24 prefill engines of 2 nodes (16 H200, 8 attention ranks in lock step)
with MiMo-V2.5 and more prompts than they can serve at once. With buckets, the same engines are
split among the classes 0-64K, 64K-256K and 256K-1M in proportion to the work of each. Both sides
serve in order of arrival, so that lengths meet as they arrive: the compute-aware queue sorts a
standing backlog by length, which makes buckets of it in time (the figures "by_work").
"""

from __future__ import annotations

import numpy as np

from bench.result import Bar, Figure, Result
from tools.replay.buckets import bucketed, split
from tools.replay.fleets import OUR_QUEUE, fleet, simulate
from tools.replay.generate import length_mix

ENGINES, RANKS, GPUS = 24, 8, 16


def run(quick: bool) -> Result:
    count = 3000 if quick else 6000
    seeds = range(2 if quick else 5)
    setup = fleet(ENGINES, ranks=RANKS, gpus=GPUS, decodes=False)
    readings: dict[str, list[float]] = {}
    shares: list[list[int]] = []
    for seed in seeds:
        prompts = length_mix(count, 1.0, seed).at_once()
        engines = split(setup, prompts)
        shares.append(engines)
        for label, queue in (("by_arrival", "fcfs"), ("by_work", OUR_QUEUE)):
            mixed = simulate(setup, prompts, queue=queue).input_throughput
            separate = bucketed(setup, prompts, engines, queue=queue).input_throughput
            for side, value in (
                ("mixed_tokens_s", mixed),
                ("bucketed_tokens_s", separate),
                ("ratio", separate / mixed),
            ):
                readings.setdefault(f"{label}_{side}", []).append(value)
    figures: dict[str, Figure | float] = {k: Figure.of(v) for k, v in readings.items()}
    return Result(
        {"engines": ENGINES, "ranks": RANKS, "prompts": count, "engines_by_class": shares},
        figures,
        {"throughput_ratio": Bar(float(np.median(readings["by_arrival_ratio"])), at_least=1.2)},
    )
