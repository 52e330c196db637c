"""Input throughput with and without length buckets, on a mix of prompts up to 1M tokens.

Simulated (tools/replay): 12 prefill engines of 2 nodes (16 H200, 8 attention ranks in lock step)
with MiMo-V2.5, all prompts there at once. With buckets, the same engines are split among the
classes 0-64K, 64K-256K and 256K-1M in proportion to the work of each.
"""

from __future__ import annotations

from bench.result import Bar, Figure, Result
from tools.replay.buckets import bucketed, split
from tools.replay.fleets import fleet, simulate
from tools.replay.generate import length_mix

ENGINES, RANKS, GPUS = 12, 8, 16


def run(quick: bool) -> Result:
    count = 1500 if quick else 6000
    seeds = range(2 if quick else 5)
    setup = fleet(ENGINES, ranks=RANKS, gpus=GPUS, decodes=False)
    mixed, separate, ratios = [], [], []
    shares: list[list[int]] = []
    for seed in seeds:
        prompts = length_mix(count, 1.0, seed).at_once()
        engines = split(setup, prompts)
        shares.append(engines)
        mixed.append(simulate(setup, prompts).input_throughput)
        separate.append(bucketed(setup, prompts, engines).input_throughput)
        ratios.append(separate[-1] / mixed[-1])
    figure = Figure.of(ratios)
    return Result(
        {"engines": ENGINES, "ranks": RANKS, "prompts": count, "engines_by_class": shares},
        {
            "mixed_tokens_s": Figure.of(mixed),
            "bucketed_tokens_s": Figure.of(separate),
            "ratio": figure,
        },
        {"throughput_ratio": Bar(figure.median, at_least=1.2)},
    )
