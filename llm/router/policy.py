"""Which replica a prompt goes to: weight x matched share - normalised load.

Load is what a new prompt would wait for: uncached tokens queued and running on a replica, never a
count of requests. It is normalised by `load_tokens`, or by the mean load where that is higher, so
that a whole match outweighs `weight` times that much load. Under pressure the mean grows with the
queues: when all are busy, sending a prompt away from its prefix only adds work for everybody. Of
equals the one that got the least work lately is chosen, so that caches fill and age alike. See
docs/scheduling.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class RoutingPolicy:
    """`weight`: of the matched share; `held_weight`: what a token counts that is held after the
    last place where a match may stop; `load_tokens`: least unit of load. A replica is overloaded,
    and asked after all that are not, when its load exceeds both `overload_tokens` and
    `overload_factor` times the mean.

    Under sliding windows the second prompt with a new common prefix computes it again wherever it
    goes; only where the prefix is held does that make a place to stop for the third.
    """

    weight: float = 8.0
    held_weight: float = 0.5
    load_tokens: float = 131_072.0
    overload_factor: float = 3.0
    overload_tokens: float = 262_144.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"weight must be at least 0, got {self.weight}")
        if not 0 <= self.held_weight <= 1:
            raise ValueError(f"held_weight must be from 0 to 1, got {self.held_weight}")
        if self.load_tokens <= 0:
            raise ValueError(f"load_tokens must be above 0, got {self.load_tokens}")
        if self.overload_factor < 1:
            # Else every replica may be overloaded at equal loads.
            raise ValueError(f"overload_factor must be at least 1, got {self.overload_factor}")


def scores(
    policy: RoutingPolicy,
    tokens: int,
    matched: npt.ArrayLike,
    loads: Floats,
    mean: float | None = None,
) -> Floats:
    """Score of every replica, float64 [n], for a prompt of `tokens`.

    `mean`: the mean load of all replicas, when these are only some of them.
    """
    shares = np.asarray(matched, np.float64) / max(1, tokens)
    return policy.weight * shares - loads / max(policy.load_tokens, _mean(loads, mean))


def overloaded(
    policy: RoutingPolicy, loads: Floats, mean: float | None = None
) -> npt.NDArray[np.bool_]:
    """Which replicas are asked after the others, bool [n]; never all of them."""
    return loads > max(policy.overload_tokens, policy.overload_factor * _mean(loads, mean))


def _mean(loads: Floats, mean: float | None) -> float:
    if mean is not None:
        return mean
    return float(loads.mean()) if loads.size else 0.0


def rank(
    policy: RoutingPolicy,
    tokens: int,
    matched: npt.ArrayLike,
    loads: Floats,
    ties: npt.NDArray[np.uint64],
    first: int = 1,
    recent: Floats | None = None,
    mean: float | None = None,
) -> list[int]:
    """Indices of the `first` best replicas, best first.

    `matched`: usable tokens, `loads`: tokens, `ties`: a fixed random number of each replica,
    `recent`: work sent there lately (none, if left out); all [n], replicas that are alive only.
    Equal scores go to the lower load, then to the less recent work, then to the lower tie number,
    so that every router with the same state chooses the same. `mean` as for `scores`.
    """
    if not loads.size:
        return []
    cost = -scores(policy, tokens, matched, loads, mean)
    skip = overloaded(policy, loads, mean)
    if skip.any():
        # Behind all others, in their own order.
        cost = np.where(skip, cost + (cost.max() - cost.min() + 1.0), cost)
    if recent is None:
        recent = np.zeros(loads.size)
    few = lowest((cost, loads, recent, ties), first)
    order = few[np.lexsort((ties[few], recent[few], loads[few], cost[few]))]
    return [int(index) for index in order[:first]]


def lowest(keys: Sequence[Floats | npt.NDArray[np.uint64]], count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` lowest by the first key, then the second and so on, in no order.

    Those that equal the last of them in every key are among the result.
    """
    sure: list[npt.NDArray[np.intp]] = []
    among = np.arange(keys[0].size)
    for number, key in enumerate(keys):
        if among.size <= count:
            break
        values = key[among] if number else key
        border = values.min() if count == 1 else np.partition(values, count - 1)[count - 1]
        if count > 1:
            below = among[values < border]
            sure.append(below)
            count -= below.size
        among = among[values == border]
    return np.concatenate([*sure, among]) if sure else among


def tie_numbers(
    hashes: Sequence[int] | npt.NDArray[np.uint64], digest: int
) -> npt.NDArray[np.uint64]:
    """A number for every replica that depends on its name and the prompt: rendezvous hashing, so
    that new prompts spread over idle replicas and all routers agree on where each one goes.
    """
    mixed = np.array(hashes, np.uint64) ^ np.uint64(digest & (2**64 - 1))
    mixed *= _MIX
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MIX
    return mixed


def choose(
    policy: RoutingPolicy,
    tokens: int,
    matched: Mapping[str, int],
    loads: Mapping[str, float],
    digest: int = 0,
) -> str | None:
    """The same by name, for few replicas: `loads` names those that are alive; None without any."""
    from llm.router.slots import Slots

    slots = Slots()
    for name in loads:
        slots.add(name)
    array = np.array(list(loads.values()), np.float64)
    found = [matched.get(name, 0) for name in loads]
    order = rank(policy, tokens, found, array, tie_numbers(slots.hashes, digest))
    return slots.names[order[0]] if order else None
