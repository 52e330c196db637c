"""The autoscaling policy: pure, against Ray Serve's own wrapper, and under simulated load."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig

from encoders.autoscaling import Load, WorkPolicy, load_of, wanted_replicas


def wanted(pending: float, busy: float, current: int) -> int:
    return wanted_replicas(Load(pending, busy), current, target_work=1000, least=1, most=10)


@pytest.mark.parametrize(
    ("pending", "busy", "current", "expected"),
    [
        (0, 0.0, 1, 1),  # idle
        (0, 0.0, 5, 1),
        (2500, 0.5, 1, 3),  # queued work
        (50_000, 1.0, 1, 10),  # bounded
        (10, 0.9, 1, 2),  # no queue, but hardly a replica's capacity left
        (10, 2.0, 2, 3),
        (1900, 0.5, 2, 2),  # would need all of two: stays
        (1700, 0.5, 3, 3),  # fits into two, but not with a quarter to spare
        (1500, 0.5, 3, 2),
        (10, 1.4, 3, 3),  # two replicas would be 70 % busy: too close
        (10, 1.2, 3, 2),
    ],
)
def test_golden_decisions(pending: float, busy: float, current: int, expected: int) -> None:
    assert wanted(pending, busy, current) == expected


loads = st.builds(Load, st.floats(0, 1e6), st.floats(0, 20))


@given(load=loads, current=st.integers(1, 20), least=st.integers(0, 5), spread=st.integers(0, 20))
def test_bounds_and_a_fixed_point(load: Load, current: int, least: int, spread: int) -> None:
    limits: dict[str, Any] = {"target_work": 1000.0, "least": least, "most": least + spread}
    first = wanted_replicas(load, current, **limits)
    assert least <= first <= least + spread
    # Under the same load the next decision changes nothing: no oscillation.
    assert wanted_replicas(load, first, **limits) == first


@given(load=loads, current=st.integers(1, 20), more=st.floats(1, 3))
def test_more_load_never_means_fewer(load: Load, current: int, more: float) -> None:
    limits: dict[str, Any] = {"target_work": 1000.0, "least": 0, "most": 50}
    heavier = Load(load.pending * more, load.busy * more)
    assert wanted_replicas(heavier, current, **limits) >= wanted_replicas(load, current, **limits)


def context(
    metrics: dict[str, dict[str, float]] | None, *, target: int = 2, queued: float | None = 0
) -> Any:
    return SimpleNamespace(
        target_num_replicas=target,
        current_num_replicas=target,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
        aggregated_metrics=metrics,
        total_queued_requests=queued,
        total_num_requests=0,
        policy_state={},
        config=AutoscalingConfig(
            min_replicas=1, max_replicas=8, upscale_delay_s=0, downscale_delay_s=0
        ),
    )


def test_the_load_is_what_all_replicas_report_and_what_waits_before_them() -> None:
    metrics = {
        "running_requests": {"a": 3.0, "b": 1.0},
        "pending_work": {"a": 100.0, "b": 50.0},
        "mean_work": {"a": 10.0, "b": 30.0},
        "busy": {"a": 0.5, "b": 1.0},
    }
    assert load_of(context(metrics, queued=4)) == Load(150 + 4 * 20, 1.5)
    assert load_of(context(metrics, queued=None)) == Load(150, 1.5)
    for missing in (None, {}, {"running_requests": {"a": 3.0}}):
        assert load_of(context(missing, queued=4)) is None
        assert WorkPolicy(100)(context(missing, target=5)) == (5, {})
    with pytest.raises(ValueError, match="target_work"):
        WorkPolicy(0)


def test_ray_serve_takes_the_policy_from_settings() -> None:
    config = AutoscalingConfig(
        min_replicas=1,
        max_replicas=8,
        policy={
            "policy_function": "encoders.autoscaling:WorkPolicy",
            "policy_kwargs": {"target_work": 100.0},
        },
    )
    policy = _apply_autoscaling_config(_resolve_policy_callable(config.policy))
    metrics = {"pending_work": {"a": 150.0, "b": 450.0}, "busy": {"a": 1.0, "b": 1.0}}
    assert policy(context(metrics))[0] == 6
    assert policy(context({"pending_work": {"a": 0.0}, "busy": {"a": 0.1}}))[0] == 1


def simulate(arrivals: list[float], start: int, seed: int) -> list[int]:
    """Replicas over time: each does 100 units of work a second, decisions once a second by means
    of the last ten, added replicas come after five seconds, removals need a minute's wish."""
    rng = random.Random(seed)
    running, pending, wish = start, 0.0, 0
    coming: list[tuple[int, int]] = []
    history: list[tuple[float, float]] = []
    numbers: list[int] = []
    for second, rate in enumerate(arrivals):
        running += sum(count for at, count in coming if at == second)
        coming = [entry for entry in coming if entry[0] > second]
        pending += rate * rng.uniform(0.5, 1.5)
        done = min(pending, 100.0 * running)
        pending -= done
        history.append((pending + done, done / 100.0))
        window = history[-10:]
        load = Load(*(sum(values) / len(window) for values in zip(*window, strict=True)))
        target = running + sum(count for _, count in coming)
        number = wanted_replicas(load, target, target_work=200, least=1, most=20)
        wish = wish + 1 if number < target else 0
        if number > target:
            coming.append((second + 5, number - target))
        elif wish >= 60:
            running, wish = running - (target - number), 0
        numbers.append(running + sum(count for _, count in coming))
    return numbers


@pytest.mark.parametrize("seed", range(5))
def test_a_step_of_load_makes_few_changes_of_direction(seed: int) -> None:
    # case 91
    numbers = simulate([80.0] * 120 + [900.0] * 300 + [80.0] * 300, 1, seed)
    changes = [b - a for a, b in pairwise(numbers) if b != a]
    turns = sum(a * b < 0 for a, b in pairwise(changes))
    assert turns <= 3  # up, down from clearing the queue, at most a correction, down
    assert max(numbers) >= 9  # 900 units a second need nine at least
    steady = numbers[360:420]
    assert min(steady) >= 9
    assert max(steady) <= math.ceil(9 / 0.8 * 1.25) + 2
    assert numbers[-1] <= 2
