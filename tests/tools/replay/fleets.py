"""Small fleets and workloads with answers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tools.replay.cluster import Setup
from tools.replay.cost import CostModel
from tools.replay.geometry import V25, Geometry, Pools
from tools.replay.replica import Limits
from tools.replay.workload import Workload, offsets_of

BLOCK = 16
COST = CostModel(
    step_s=0.01,
    token_s=0.001,
    pair_s=1e-6,
    decode_step_s=0.02,
    decode_request_s=0.001,
    decode_context_s=1e-6,
)


def workload(
    paths: list[list[int]],
    arrival: list[float] | None = None,
    output: list[int] | None = None,
    short: int = 0,
) -> Workload:
    """Requests with these block ids, all blocks full but for ``short`` tokens of the last."""
    times = np.array(arrival if arrival is not None else [0.0] * len(paths))
    made = Workload(
        "made",
        BLOCK,
        times,
        times,
        np.array([len(p) * BLOCK - short for p in paths], np.int64),
        np.array(output if output is not None else [1] * len(paths), np.int64),
        offsets_of([len(p) for p in paths]),
        np.array([b for p in paths for b in p], np.int64),
        np.arange(len(paths), dtype=np.int64),
    )
    made.check()
    return made


def conversations(
    count: int, turns: int, seed: int, rate: float = 20.0, shared: int = 2, most: int = 4
) -> Workload:
    """Interleaved conversations behind a shared prefix: each turn extends the one before."""
    rng = np.random.default_rng(seed)
    fresh = iter(range(1000, 10_000_000))
    grown = {c: list(range(shared)) for c in range(count)}
    order = rng.permutation(np.repeat(np.arange(count), turns))
    paths = []
    for c in order.tolist():
        grown[c] += [next(fresh) for _ in range(int(rng.integers(1, most + 1)))]
        paths.append(list(grown[c]))
    arrival = np.cumsum(rng.exponential(1 / rate, len(paths)))
    output = rng.integers(1, 30, len(paths))
    made = workload(paths, arrival.tolist(), output.tolist(), short=3)
    return replace(made, session=order.astype(np.int64))


def setup(
    groups: int = 1,
    geometry: Geometry | None = None,
    pools: Pools | None = None,
    limits: Limits | None = None,
    cost: CostModel = COST,
    report_s: float = 0.0,
) -> Setup:
    """A fleet without a window model and with room for everything, unless said otherwise."""
    return Setup(
        geometry if geometry is not None else V25.without_window(),
        cost,
        pools if pools is not None else Pools(10**7, 0),
        groups,
        limits if limits is not None else Limits(chunk=64),
        report_s,
    )
