"""The fleets that reports and benchmarks ask about: nodes of 8 H200 with MiMo-V2.5, or others."""

from __future__ import annotations

from collections.abc import Callable

from tools.replay.cluster import Cluster, Setup
from tools.replay.cost import H200_BYTES, h200_node
from tools.replay.geometry import MODELS, Geometry, Pools, pools
from tools.replay.production import ComputeAware, KvAffinity
from tools.replay.queues import BASELINES as QUEUES
from tools.replay.replica import Limits, Queue
from tools.replay.results import Results
from tools.replay.routers import BASELINES as ROUTERS
from tools.replay.routers import RouterFactory
from tools.replay.workload import Workload

# The recommended launch lines for these models on H200 (nodes of 8, 16K and 32K chunks).
GPUS = {"v2.5": 8, "pro": 16}
CHUNK = {"v2.5": 16384, "pro": 32768}
MEMORY_SHARE = {"v2.5": 0.65, "pro": 0.7}
WINDOW_RATIO = 0.3
MAX_RUNNING = 128
# SWA tokens that a running request holds: its window, a page, and drafts between evictions.
RUNNING_WINDOW = 129 + 64 + 4 * 16
# Windows kept on the way through a prompt: `tiers.swa_tails` of configs/mimo-v2.5-gpu.yaml.
DENSE_EVERY = 2048
OURS = "kv-affinity"
OUR_QUEUE = "compute-aware"


def fleet(
    nodes: int,
    model: str = "v2.5",
    ranks: int = 1,
    window: bool = True,
    decodes: bool = True,
    host_gb: float = 0.0,
    store_gb: float = 0.0,
    report_s: float = 1.0,
    gpus: int | None = None,
    dense_every: int = DENSE_EVERY,
) -> Setup:
    """``nodes`` engines of one model, each of ``ranks`` attention ranks in lock step.

    ``host_gb``: of each node; ``store_gb``: of the whole fleet. Without ``window``, all layers
    attend to all tokens. Raises KeyError for another model, ValueError where memory is short.
    """
    geometry: Geometry = MODELS[model]
    gpus = GPUS[model] if gpus is None else gpus
    chunk = CHUNK[model]
    shown = geometry if window else geometry.without_window()
    reserve = RUNNING_WINDOW * MAX_RUNNING + chunk * ranks
    room = pools(shown, gpus, H200_BYTES, MEMORY_SHARE[model], WINDOW_RATIO, reserve)
    each = Pools(
        room.full_tokens // ranks, room.windows // ranks, host_gb * 1e9 / ranks, store_gb * 1e9
    )
    limits = Limits(chunk, MAX_RUNNING // ranks, decodes, dense_every)
    return Setup(shown, h200_node(shown, gpus, ranks), each, nodes, limits, report_s)


def router_of(name: str, block_tokens: int) -> RouterFactory:
    """A router by name. Raises KeyError naming what there is."""
    if name == OURS:
        return lambda fleet: KvAffinity(fleet, block_tokens, max_pairs=1 << 26)
    if name not in ROUTERS:
        raise KeyError(f"no router {name!r}; there are: {', '.join([OURS, *ROUTERS])}")
    return ROUTERS[name]


def queue_of(name: str) -> Callable[[], Queue]:
    """A queue by name. Raises KeyError naming what there is."""
    if name == OUR_QUEUE:
        return ComputeAware
    if name not in QUEUES:
        raise KeyError(f"no queue {name!r}; there are: {', '.join([OUR_QUEUE, *QUEUES])}")
    return QUEUES[name]


def simulate(
    setup: Setup, workload: Workload, router: str = OURS, queue: str = OUR_QUEUE
) -> Results:
    """Serve a workload; invariants are checked at the end."""
    chosen = router_of(router, workload.block_tokens)
    cluster = Cluster(setup, workload, chosen, queue_of(queue))
    results = cluster.run()
    cluster.check()
    return results


def at_load(setup: Setup, workload: Workload, load: float) -> Workload:
    """The workload, arriving at ``load`` times the rate at which the fleet is saturated.

    The saturation rate is that of serving everything with power of two choices, first come first
    served, from a queue that is never empty.
    """
    rate = len(workload) / saturated_s(setup, workload)
    return workload.at_rate(load * rate * workload.seconds / len(workload))


def saturated_s(setup: Setup, workload: Workload) -> float:
    """Seconds in which the fleet serves everything when all of it is there at once."""
    results = simulate(setup, workload.at_once(), "power-of-two", "fcfs")
    return results.makespan
