"""Metrics of a replica, exported by Ray: batch sizes, durations, waits and the queue.

In a Serve replica they carry its deployment and replica as tags. Outside of one there is nobody to
export them, so there are none; `stats()` of a replica has the same numbers as plain data.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from encoders.batcher import BatchObserver, PassReport

ITEMS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
WORK = [64 * 4**n for n in range(9)]
SECONDS = [0.001 * 2**n for n in range(17)]


class Histogram(Protocol):
    """`ray.serve.metrics.Histogram`, as far as it is used."""

    def observe(self, value: float) -> None: ...


class Gauge(Protocol):
    """`ray.serve.metrics.Gauge`, as far as it is used."""

    def set(self, value: float) -> None: ...


@dataclass(frozen=True)
class BatchMetrics:
    """A `BatchObserver` that fills these."""

    batch_items: Histogram
    batch_work: Histogram
    forward_seconds: Histogram
    wait_seconds: Histogram
    queued_items: Gauge
    queued_work: Gauge

    def __call__(self, report: PassReport) -> None:
        self.batch_items.observe(report.items)
        self.batch_work.observe(report.work)
        self.forward_seconds.observe(report.seconds)
        for wait in report.waits:
            self.wait_seconds.observe(max(wait, 0.0))
        self.queued_items.set(report.queued_items)
        self.queued_work.set(report.queued_work)


def batch_metrics(modality: str, unit: str) -> BatchObserver | None:
    """The metrics of an encoder replica ("image", "patches"); None outside of Ray Serve."""
    # A process that has not even imported Serve is no replica: do not import it for the question.
    if "ray.serve" not in sys.modules:
        return None
    from ray.serve import metrics
    from ray.serve.context import _get_internal_replica_context

    if _get_internal_replica_context() is None:
        return None
    name = f"omniserve_{modality}_encoder"

    def histogram(what: str, description: str, boundaries: Sequence[float]) -> Histogram:
        found: Histogram = metrics.Histogram(f"{name}_{what}", description, list(boundaries))
        return found

    return BatchMetrics(
        histogram("batch_items", "Items per forward pass", ITEMS),
        histogram(f"batch_{unit}", f"{unit} per forward pass", WORK),
        histogram("forward_seconds", "Duration of a forward pass", SECONDS),
        histogram("wait_seconds", "Wait of an item before its forward pass", SECONDS),
        metrics.Gauge(f"{name}_queued_items", "Items that wait for a forward pass"),
        metrics.Gauge(f"{name}_queued_{unit}", f"{unit} that wait for a forward pass"),
    )
