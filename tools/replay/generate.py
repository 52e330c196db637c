"""Workloads made up from distributions, where no public trace has what a question needs."""

from __future__ import annotations

import numpy as np

from tools.replay.workload import Workload, offsets_of

BLOCK = 512


def length_mix(
    count: int, rate: float, seed: int, shares: tuple[float, ...] = (0.9, 0.07, 0.03)
) -> Workload:
    """Cold prompts of up to 1M tokens, as Poisson arrivals.

    ``shares`` of 1K-64K, 64K-256K and 256K-1M tokens; log-uniform within each range.
    """
    rng = np.random.default_rng(seed)
    bounds = ((1024, 65_536), (65_536, 262_144), (262_144, 1_000_000))
    kinds = rng.choice(len(bounds), count, p=np.array(shares) / sum(shares))
    low, high = (np.log(np.array([b[i] for b in bounds])[kinds]) for i in (0, 1))
    tokens = np.exp(rng.uniform(low, high)).astype(np.int64)
    counts = -(-tokens // BLOCK)
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    return _checked(
        Workload(
            f"length mix to 1M ({count} requests)",
            BLOCK,
            arrival,
            arrival,
            tokens,
            np.maximum(1, rng.geometric(1 / 300, count)),
            offsets_of(counts.tolist()),
            np.arange(int(counts.sum()), dtype=np.int64),
            np.arange(count, dtype=np.int64),
            (f"cold prompts, log-uniform lengths, shares {shares}, seed {seed}",),
        )
    )


def agents(
    sessions: int,
    turns: int,
    rate: float,
    seed: int,
    first_tokens: int = 12_000,
    turn_tokens: int = 1500,
    think_s: float = 10.0,
    cold_share: float = 0.1,
) -> Workload:
    """Agents that work in turns behind one of a few instructions, and single cold requests.

    Sessions open as a Poisson process of ``rate`` per second. Each has a geometric number of turns
    (mean ``turns``); a turn adds about ``turn_tokens`` to everything before it and comes about
    ``think_s`` after the last. First prompts are log-normal around ``first_tokens``. ``cold_share``
    of the sessions are single prompts of 2 to 16 times that length. Turns that would come after
    the last session opens are left out, so that the rate does not fade.
    """
    rng = np.random.default_rng(seed)
    opening = np.cumsum(rng.exponential(1 / rate, sessions))
    instructions = [list(range(i * 8, i * 8 + 8)) for i in range(8)]
    next_block = 64
    rows: list[tuple[float, int, int, list[int], int]] = []
    for session, start in enumerate(opening.tolist()):
        cold = rng.random() < cold_share
        path = [] if cold else list(instructions[int(rng.integers(8))])
        tokens = int(first_tokens * rng.lognormal(0.0, 0.6))
        if cold:
            tokens = int(first_tokens * rng.uniform(2, 16))
        tokens = max(tokens, len(path) * BLOCK + 64)
        at = start
        for _ in range(1 if cold else int(rng.geometric(1 / turns))):
            if at > opening[-1]:
                break
            needed = -(-tokens // BLOCK)
            path = path + list(range(next_block, next_block + needed - len(path)))
            next_block += max(0, needed)
            rows.append((at, tokens, int(rng.geometric(1 / 250)), path, session))
            # The last, partly filled block gets another identity when text follows.
            path = path[: tokens // BLOCK]
            tokens += max(64, int(turn_tokens * rng.lognormal(0.0, 0.7)))
            at += float(rng.exponential(think_s)) + 1.0
    rows.sort(key=lambda r: r[0])
    arrival = np.array([r[0] for r in rows])
    return _checked(
        Workload(
            f"agents ({sessions} sessions)",
            BLOCK,
            arrival,
            arrival,
            np.array([r[1] for r in rows], np.int64),
            np.array([r[2] for r in rows], np.int64),
            offsets_of([len(r[3]) for r in rows]),
            np.array([b for r in rows for b in r[3]], np.int64),
            np.array([r[4] for r in rows], np.int64),
            (f"generated: {sessions} sessions of {turns} turns on average, seed {seed}",),
        )
    )


def _checked(workload: Workload) -> Workload:
    workload.check()
    return workload
