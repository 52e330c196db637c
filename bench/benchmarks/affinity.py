"""Hit rate and throughput of the KV-affinity router against Serve's routers, on public traces.

Simulated (tools/replay): 8 nodes of 8 H200 with MiMo-V2.5, the production router and queue on a
virtual clock. Traces arrive at 70 % of the rate that saturates the fleet under power of two
choices; throughput is read at 130 % of it.
"""

from __future__ import annotations

from bench.result import Bar, Figure, Result
from tools.replay import traces
from tools.replay.fleets import OURS, at_load, fleet, simulate
from tools.replay.results import Results

NODES = 8
ROUTERS = (OURS, "power-of-two", "prefix-affinity", "session-hash")
LOAD, PRESSURE = 0.7, 1.3


def run(quick: bool) -> Result:
    setup = fleet(NODES)
    figures: dict[str, Figure | float] = {}
    bars: dict[str, Bar] = {}
    sizes: dict[str, object] = {"nodes": NODES, "load": LOAD, "pressure": PRESSURE}
    for name in ("conversation", "synthetic"):
        trace = traces.load(name)
        if quick:
            trace = trace.first(len(trace) // 3)
        sizes[name] = len(trace)
        usual = at_load(setup, trace, LOAD)
        pressed = at_load(setup, trace, PRESSURE)
        found: dict[str, Results] = {}
        for router in ROUTERS:
            found[router] = simulate(setup, usual, router)
            key = f"{name}_{router}"
            row = found[router].row()
            figures[f"{key}_hit_rate"] = row["hit rate"]
            figures[f"{key}_ttft_p90_s"] = row["TTFT p90 s"]
            figures[f"{key}_imbalance"] = row["imbalance"]
            figures[f"{key}_tokens_s"] = simulate(setup, pressed, router).input_throughput
        ours = found[OURS].hit_rate
        others = max(found[r].hit_rate for r in ROUTERS[2:])
        figures[f"{name}_unbounded_hit_rate"] = trace.infinite_hits()
        bars[f"{name}_hits_over_power_of_two"] = Bar(
            ours / found["power-of-two"].hit_rate, at_least=1.25
        )
        bars[f"{name}_hits_over_best_other"] = Bar(ours / others, at_least=1.0)
        bars[f"{name}_imbalance"] = Bar(found[OURS].imbalance, at_most=1.3)
    return Result(sizes, figures, bars)
