"""Hit rate and throughput of the KV-affinity router against Serve's routers, on public traces.

Simulated (tools/replay): 8 nodes of 8 H200 with MiMo-V2.5, the production router and queue on a
virtual clock. Traces arrive at 50 to 90 % of the rate that saturates the fleet under power of two
choices (where passes happen to end moves a hit rate by some 0.0005, so one rate says little);
throughput is read at 130 % of it.
"""

from __future__ import annotations

from statistics import median

from bench.result import Bar, Figure, Result
from tools.replay import traces
from tools.replay.fleets import OURS, fleet, saturated_s, simulate

NODES = 8
ROUTERS = (OURS, "power-of-two", "prefix-affinity", "session-hash")
LOADS, PRESSURE = (0.5, 0.6, 0.7, 0.8, 0.9), 1.3
SHOWN = {"hit_rate": "hit rate", "ttft_p90_s": "TTFT p90 s", "imbalance": "imbalance"}


def run(quick: bool) -> Result:
    setup = fleet(NODES)
    loads = LOADS[2:3] if quick else LOADS
    figures: dict[str, Figure | float] = {}
    bars: dict[str, Bar] = {}
    sizes: dict[str, object] = {"nodes": NODES, "loads": list(loads), "pressure": PRESSURE}
    for name in ("conversation", "synthetic"):
        trace = traces.load(name)
        if quick:
            trace = trace.first(len(trace) // 3)
        sizes[name] = len(trace)
        # Arrivals at load 1 keep the fleet just saturated.
        full = trace.at_rate(trace.seconds / saturated_s(setup, trace))
        rows = {
            router: [simulate(setup, full.at_rate(load), router).row() for load in loads]
            for router in ROUTERS
        }
        pressed = full.at_rate(PRESSURE)
        for router, found in rows.items():
            key = f"{name}_{router}"
            for label, column in SHOWN.items():
                figures[f"{key}_{label}"] = Figure.of([row[column] for row in found])
            figures[f"{key}_tokens_s"] = simulate(setup, pressed, router).input_throughput
        hits = {router: [row["hit rate"] for row in found] for router, found in rows.items()}
        others = map(max, *(hits[router] for router in ROUTERS[2:]))
        best = [ours / other for ours, other in zip(hits[OURS], others, strict=True)]
        two = [a / b for a, b in zip(hits[OURS], hits["power-of-two"], strict=True)]
        figures[f"{name}_unbounded_hit_rate"] = trace.infinite_hits()
        # What routing alone can reach: no eviction, windows kept where the engine keeps them.
        limits = setup.limits
        figures[f"{name}_windowed_hit_rate"] = trace.windowed_hits(limits.chunk, limits.tails)
        figures[f"{name}_hits_over_best_other"] = Figure.of(best)
        bars[f"{name}_hits_over_power_of_two"] = Bar(median(two), at_least=1.25)
        bars[f"{name}_hits_over_best_other"] = Bar(median(best), at_least=1.0)
        worst = max(row["imbalance"] for row in rows[OURS])
        bars[f"{name}_imbalance"] = Bar(worst, at_most=1.3)
    return Result(sizes, figures, bars)
