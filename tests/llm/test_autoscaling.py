"""Replicas of the language model follow uncached tokens: how many, and how steadily."""

from __future__ import annotations

import random
from collections import deque
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve.config import AutoscalingConfig

from app.settings.scheduling import LlmAutoscaling
from llm.router.engine_probe import ASK
from llm.router.replica import PrefixReporter

SCALING = LlmAutoscaling(min_replicas=1, max_replicas=8, target_uncached_tokens=20_000)


def policy() -> Any:
    config = AutoscalingConfig(**SCALING.serve_options())
    return _resolve_policy_callable(config.policy)


def context(replicas: int, waiting: float, busy: float) -> Any:
    names = [str(number) for number in range(replicas)]
    share = dict.fromkeys(names, waiting / replicas)
    metrics = {"pending_work": share, "busy": dict.fromkeys(names, busy)}
    return SimpleNamespace(
        target_num_replicas=replicas,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
        aggregated_metrics={**metrics, "mean_work": dict.fromkeys(names, 500.0)},
        total_queued_requests=0,
    )


def test_case_91_a_step_of_load_is_followed_without_flapping() -> None:
    """With what Serve adds to the policy: the mean of 30 s of reports, and the two delays."""
    decide, chance = policy(), random.Random(1)
    replicas, history = 1, []
    seen: deque[float] = deque(maxlen=30)
    wishes: list[int] = []
    for second in range(1500):
        # Tokens that arrive in a second; a replica prefills 10,000 of them.
        arriving = (45_000 if 200 <= second < 600 else 6_000) * chance.uniform(0.8, 1.2)
        seen.append(arriving)
        mean = sum(seen) / len(seen)
        backlog = max(0.0, mean - 10_000 * replicas) * 5 + mean * 0.2
        busy = min(1.0, mean / (10_000 * replicas))
        wanted, _ = decide(context(replicas, backlog, busy))
        wishes.append(wanted)
        for delay, beyond in ((SCALING.upscale_delay_s, 1), (SCALING.downscale_delay_s, -1)):
            last = wishes[-int(delay) :]
            if len(last) == delay and all((wish - replicas) * beyond > 0 for wish in last):
                replicas = wanted
                wishes.clear()
        history.append(replicas)
    assert min(history[300:590]) >= 5
    assert max(history[1300:]) <= 2
    changes = [b - a for a, b in pairwise(history) if a != b]
    turns = sum((a > 0) != (b > 0) for a, b in pairwise(changes))
    assert turns <= 2, changes
    assert len(changes) <= 8, changes


def test_one_target_is_given() -> None:
    with pytest.raises(ValueError, match="give either"):
        LlmAutoscaling(min_replicas=1, max_replicas=2)
    with pytest.raises(ValueError, match="give either"):
        LlmAutoscaling(
            min_replicas=1, max_replicas=2, target_uncached_tokens=5, target_ongoing_requests=5
        )
    plain = LlmAutoscaling(min_replicas=1, max_replicas=2, target_ongoing_requests=5)
    assert plain.serve_options()["target_ongoing_requests"] == 5
    assert "policy" not in plain.serve_options()


class Manager:
    """SGLang's tokenizer manager over two schedulers."""

    def auto_create_handle_loop(self) -> None: ...

    async def get_internal_state_communicator(self, request: Any) -> list[Any]:
        assert request.rid == ASK
        states = ({"load": 100, "running": 0.5}, {"load": 300, "running": 1.0})
        return [SimpleNamespace(internal_state=state | {"prefixes": []}) for state in states]


async def test_replicas_report_what_the_policy_reads() -> None:
    reporter = PrefixReporter(Manager(), len, 64, 1)
    stats = await reporter.autoscaling_stats()
    assert stats == {"pending_work": 400, "mean_work": 0.0, "busy": 0.75}
    report = await reporter.report()
    assert report["load"] == 400
    quiet = PrefixReporter(Manager(), len, None, 1)
    assert await quiet.report() == {}
    follow = quiet.follow("rid", {"messages": []}, ())
    follow.prompt(5)
    follow.feed(b"{}")
    follow.done()
    reporter.check()
