"""Hit rate and hottest replica of a Zipf stream over four caches: our ring against two others.

A simulation with the real ring, load bound and cache; only the encoders are left out. Sizes of the
items follow a log-normal distribution, their cost is proportional to size. Round robin and plain
consistent hashing (no bound) run over the same stream and the same caches.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from bench.result import Bar, Figure, Result
from encoders.cache import ENTRY_BYTES, EmbeddingCache
from encoders.embedding import Embedding, RowsArray, image_layout
from encoders.ring import RecentLoad, Ring, bounded_order
from encoders.router import SLACK

REPLICAS = 4
EXPONENT = 0.9
ITEMS = 4000
ROW_BYTES = 64
# All caches together hold this share of all items' bytes.
SHARE = 0.25

Choose = Callable[[str], str]


@dataclass(frozen=True)
class Outcome:
    hit_rate: float
    hottest: float  # most calls of a replica / mean


def run(quick: bool) -> Result:
    calls, seeds = (20_000, 3) if quick else (100_000, 7)
    kinds: dict[str, Callable[[list[str]], Choose]] = {
        "ours": _ours,
        "round_robin": _round_robin,
        "consistent_hash": _plain,
    }
    found: dict[str, list[Outcome]] = {kind: [] for kind in kinds}
    for seed in range(seeds):
        items = _items(seed)
        budget = int(SHARE / REPLICAS * sum(len(i.rows) * ROW_BYTES + ENTRY_BYTES for i in items))
        # Replica names are random in life, so the ring's luck is part of the result.
        names = [f"seed{seed}-replica{index}" for index in range(REPLICAS)]
        for kind, make in kinds.items():
            found[kind].append(_replay(items, make(names), names, budget, calls, seed))
    figures: dict[str, Figure | float] = {}
    for kind, outcomes in found.items():
        figures[f"{kind}_hit_rate"] = Figure.of([outcome.hit_rate for outcome in outcomes])
        figures[f"{kind}_hottest"] = Figure.of([outcome.hottest for outcome in outcomes])
    over_robin = _worst(found["ours"], found["round_robin"])
    over_plain = _worst(found["ours"], found["consistent_hash"])
    return Result(
        {
            "replicas": REPLICAS,
            "items": ITEMS,
            "zipf": EXPONENT,
            "calls": calls,
            "seeds": seeds,
            "cached_share": SHARE,
        },
        figures,
        {
            "points_over_round_robin": Bar(100 * over_robin, at_least=20),
            "points_over_consistent_hash": Bar(100 * over_plain, at_least=-3),
            "hottest_over_mean": Bar(max(o.hottest for o in found["ours"]), at_most=1.25),
        },
    )


def _worst(ours: list[Outcome], theirs: list[Outcome]) -> float:
    """The smallest lead in hit rate over the streams."""
    return min(a.hit_rate - b.hit_rate for a, b in zip(ours, theirs, strict=True))


def _items(seed: int) -> list[Embedding]:
    """Embeddings of the items, the most wanted first."""
    rng = random.Random(seed)
    items = []
    for _ in range(ITEMS):
        rows = max(1, min(1024, round(rng.lognormvariate(4.5, 0.8))))
        array = RowsArray(np.empty((rows, ROW_BYTES), np.uint8), "uint8")
        items.append(Embedding("image", f"{rng.getrandbits(256):064x}", image_layout(rows), array))
    return items


def _replay(
    items: list[Embedding], choose: Choose, names: list[str], budget: int, calls: int, seed: int
) -> Outcome:
    """Half of the calls fill the caches, the other half counts."""
    caches = {name: EmbeddingCache(budget) for name in names}
    weights = [1 / rank**EXPONENT for rank in range(1, len(items) + 1)]
    stream: Iterator[Embedding] = iter(random.Random(seed).choices(items, weights, k=2 * calls))
    hits, load = 0, Counter[str]()
    for index, item in enumerate(stream):
        name = choose(item.digest)
        cache = caches[name]
        hit = cache.get(item.digest) is not None
        if not hit:
            cache.put(item, len(item.rows) * 1e-3)
        if index >= calls:
            hits += hit
            load[name] += 1
    for cache in caches.values():
        cache.check()
    return Outcome(hits / calls, max(load.values()) * len(names) / calls)


def _ours(names: list[str]) -> Choose:
    """As `DigestRouter` chooses when no call waits for another."""
    ring, recent = Ring(names), RecentLoad()

    def choose(digest: str) -> str:
        name = bounded_order(ring.order(digest), recent.loads(), slack=SLACK)[0]
        recent.add(name)
        return name

    return choose


def _round_robin(names: list[str]) -> Choose:
    turn = cycle(names)
    return lambda _: next(turn)


def _plain(names: list[str]) -> Choose:
    ring = Ring(names)
    return lambda digest: ring.order(digest)[0]
