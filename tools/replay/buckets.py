"""A fleet split into length buckets, and how many engines each class gets."""

from __future__ import annotations

import numpy as np

from llm.buckets import BOUNDS, BucketPolicy
from tools.replay.cluster import Cluster, Setup
from tools.replay.cost import pairs
from tools.replay.fleets import OUR_QUEUE, queue_of
from tools.replay.production import Bucketed
from tools.replay.results import Results
from tools.replay.workload import Workload


def split(setup: Setup, workload: Workload, bounds: tuple[int, ...] = BOUNDS) -> list[int]:
    """Engines for each class, in proportion to the seconds its cold prompts take; at least 1.

    Raises ValueError with fewer engines than classes.
    """
    if setup.groups < len(bounds):
        raise ValueError(f"{setup.groups} engines cannot be split into {len(bounds)} classes")
    tokens = workload.input_tokens.astype(np.float64)
    kinds = np.minimum(np.searchsorted(bounds, tokens), len(bounds) - 1)
    cost = setup.cost
    # All ranks of an engine work at once on prompts of one kind.
    seconds = tokens * cost.token_s + cost.pair_s * np.array([pairs(t, 0) for t in tokens])
    work = np.array([seconds[kinds == k].sum() for k in range(len(bounds))])
    wanted = work / work.sum() * setup.groups
    engines = np.maximum(1, np.floor(wanted)).astype(int)
    while engines.sum() < setup.groups:
        engines[int(np.argmax(wanted - engines))] += 1
    while engines.sum() > setup.groups:
        engines[int(np.argmax(np.where(engines > 1, engines - wanted, -np.inf)))] -= 1
    return [int(n) for n in engines]


def bucketed(
    setup: Setup,
    workload: Workload,
    engines: list[int],
    policy: BucketPolicy | None = None,
    queue: str = OUR_QUEUE,
) -> Results:
    """Serve a workload with ``engines`` of each class; invariants are checked at the end."""
    rules = policy or BucketPolicy()
    replicas = [count * setup.cost.ranks for count in engines]
    cluster = Cluster(
        setup,
        workload,
        lambda fleet: Bucketed(fleet, workload.block_tokens, rules, replicas),
        queue_of(queue),
    )
    results = cluster.run()
    cluster.check()
    return results
