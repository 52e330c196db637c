"""TTFT by length class of the compute-aware queue against SGLang's fcfs, lpm and hrrn.

Simulated (tools/replay): one prefill node of 8 H200 with MiMo-V2.5, agents' turns (long prompts,
mostly cached) beside long cold prompts, at 70, 85 and 95 % of the node's measured saturation.
Short, medium and long are thirds by prompt length.
"""

from __future__ import annotations

import numpy as np

from bench.result import Bar, Figure, Result
from tools.replay.fleets import OUR_QUEUE, at_load, fleet, simulate
from tools.replay.generate import agents

LOADS = (0.7, 0.85, 0.95)
QUEUES = (OUR_QUEUE, "fcfs", "lpm", "hrrn")
POINTS = (50, 70, 90, 99)


def run(quick: bool) -> Result:
    seeds = range(1 if quick else 3)
    sessions = 600 if quick else 1500
    setup = fleet(1, decodes=False)
    readings: dict[str, list[float]] = {}
    for seed in seeds:
        workload = agents(sessions, turns=5, rate=1.0, seed=seed)
        cuts = np.quantile(workload.input_tokens, (1 / 3, 2 / 3))
        for load in LOADS:
            offered = at_load(setup, workload, load)
            kinds = np.searchsorted(cuts, offered.input_tokens)
            for queue in QUEUES:
                results = simulate(setup, offered, queue=queue)
                key = f"load{load:.0%}_{queue}"
                for kind, label in enumerate(("short", "medium", "long")):
                    values = results.percentiles(results.ttft, POINTS, kinds == kind)
                    for point, value in zip(POINTS, values, strict=True):
                        readings.setdefault(f"{key}_{label}_p{point}_s", []).append(value)
                readings.setdefault(f"{key}_worst_s", []).append(float(results.ttft.max()))
    figures: dict[str, Figure | float] = {k: Figure.of(v) for k, v in readings.items()}

    def ratio(load: float, what: str, other: str) -> float:
        ours, theirs = (readings[f"load{load:.0%}_{q}_{what}"] for q in (OUR_QUEUE, other))
        return float(np.median(np.array(ours) / np.array(theirs)))

    bars: dict[str, Bar] = {}
    for load in LOADS:
        bars[f"load{load:.0%}_long_p90_over_fcfs"] = Bar(
            ratio(load, "long_p90_s", "fcfs"), at_most=0.7
        )
        bars[f"load{load:.0%}_short_p50_over_fcfs"] = Bar(
            ratio(load, "short_p50_s", "fcfs"), at_most=1.02
        )
    # Ageing costs the last ones something; SGLang's own ageing policy is the measure of it.
    bars["worst_over_hrrn"] = Bar(ratio(LOADS[-1], "worst_s", "hrrn"), at_most=1.0)
    figures["worst_over_fcfs"] = ratio(LOADS[-1], "worst_s", "fcfs")
    return Result({"sessions": sessions, "seeds": len(seeds), "loads": list(LOADS)}, figures, bars)
