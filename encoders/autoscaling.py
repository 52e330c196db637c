"""How many encoder replicas: by the work that is pending, not by the number of requests.

A request may be a thumbnail or a clip of thousands of frames. Replicas report their pending patches
or mel frames and how busy they are (`EncoderReplica.record_autoscaling_stats`); Ray Serve averages
the reports over its look-back period, applies its delays, and bounds the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# More replicas when those there are this busy, whatever waits: queues grow without end at 1.
MOST_BUSY = 0.8
# Fewer only where the load would fit with a quarter to spare: the next ripple needs no change.
SLACK = 0.25


@dataclass(frozen=True)
class Load:
    """`pending`: patches or mel frames accepted and not finished, in all replicas together and
    before them. `busy`: sum of the replicas' busy shares, so 2.0 keeps two of them fully busy.
    """

    pending: float
    busy: float


def wanted_replicas(
    load: Load, current: int, *, target_work: float, least: int, most: int, slack: float = SLACK
) -> int:
    """Replicas for `load`, within `least`..`most`.

    `target_work`: pending work that one replica should have. More than `current` as soon as the
    load asks for them, fewer only when it would still fit into them with `slack` to spare; in
    between `current` stands, so that no constant load makes the number swing.
    """
    needed = max(load.pending / target_work, load.busy / MOST_BUSY)
    wanted = math.ceil(needed) if needed > current else math.ceil(needed * (1 + slack))
    if needed <= current:
        wanted = min(wanted, current)
    return max(least, min(wanted, most))


class Context(Protocol):
    """`ray.serve.config.AutoscalingContext`, as far as it is used."""

    target_num_replicas: int
    capacity_adjusted_min_replicas: int
    capacity_adjusted_max_replicas: int

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...

    @property
    def total_queued_requests(self) -> float | None: ...


def load_of(context: Context) -> Load | None:
    """The load that replicas report; None before the first report.

    Requests that wait for a replica to have room have not reached one yet: each counts as the mean
    work of a call.
    """
    metrics = context.aggregated_metrics or {}
    pending = metrics.get("pending_work") or {}
    if not pending:
        return None
    means = metrics.get("mean_work") or {}
    mean = sum(means.values()) / len(means) if means else 0.0
    outside = (context.total_queued_requests or 0.0) * mean
    busy = sum((metrics.get("busy") or {}).values())
    return Load(sum(pending.values()) + outside, busy)


class WorkPolicy:
    """An autoscaling policy of Ray Serve. `target_work`: see `wanted_replicas`."""

    def __init__(self, target_work: float) -> None:
        if not target_work > 0:
            raise ValueError(f"target_work must be above 0, got {target_work}")
        self._target_work = target_work

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        """The wanted number and no state of its own."""
        current = context.target_num_replicas
        load = load_of(context)
        if load is None:
            return current, {}
        wanted = wanted_replicas(
            load,
            current,
            target_work=self._target_work,
            least=context.capacity_adjusted_min_replicas,
            most=context.capacity_adjusted_max_replicas,
        )
        return wanted, {}
