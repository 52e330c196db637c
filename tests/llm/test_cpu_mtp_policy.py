"""When drafting pays: the policy against a plain twin, and what it has to achieve."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.cpu.mtp_policy import MARGIN, PAUSE, SMOOTHING, TRIAL, MtpPolicy
from llm.cpu.mtp_steps import Meter


class Naive:
    """The rules read off the docstrings, over whole histories instead of running figures."""

    def __init__(self) -> None:
        self.history: dict[int, list[tuple[bool, float, float]]] = {}

    def replay(self, size: int) -> tuple[bool, bool, dict[bool, tuple[float, float]]]:
        """(drafting, the next step drafts, (seconds, tokens) of each way)."""
        drafting, trial, until_trial = True, 0, TRIAL
        figures = {True: (0.0, 1.0), False: (0.0, 1.0)}
        count = {True: 0, False: 0}
        for drafted, seconds, tokens in self.history.get(size, []):
            count[drafted] += 1
            mean_seconds, mean_tokens = figures[drafted]
            if count[drafted] > TRIAL:
                seconds = min(seconds, 4 * mean_seconds)
            w = max(SMOOTHING, 1 / count[drafted])
            figures[drafted] = (
                mean_seconds + w * (seconds - mean_seconds),
                mean_tokens + w * (tokens - mean_tokens),
            )
            if drafted == drafting:
                until_trial = max(0, until_trial - 1)
                continue
            trial += 1
            if trial < TRIAL:
                continue
            trial, until_trial = 0, PAUSE
            new, old = figures[drafted], figures[not drafted]
            if new[1] / new[0] > MARGIN * old[1] / old[0]:
                drafting = drafted
        return drafting, drafting != (until_trial == 0), figures

    def size(self, batch: int) -> int:
        return 2 ** int(math.log2(batch))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 900),
    batches=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    unobserved=st.floats(0, 0.5),
)
def test_equals_the_naive_twin(
    seed: int, steps: int, batches: list[int], unobserved: float
) -> None:
    chance = random.Random(seed)
    policy, naive = MtpPolicy(), Naive()
    gain = {b: chance.uniform(0.5, 2.0) for b in batches}
    for step in range(steps):
        if step % 300 == 0:
            gain = {b: chance.uniform(0.5, 2.0) for b in batches}
        batch = chance.choice(batches)
        drafts = policy.decide(batch)
        if step % 50 == 0:
            assert drafts == naive.replay(naive.size(batch))[1]
        policy.check()
        if chance.random() < unobserved:
            continue
        seconds = chance.uniform(0.9, 1.1) * 1e-3
        tokens = gain[batch] * chance.uniform(0.9, 1.1) if drafts else 1.0
        policy.observe(batch, drafts, seconds, tokens)
        naive.history.setdefault(naive.size(batch), []).append((drafts, seconds, tokens))
    for size, told in policy.state().items():
        drafting, drafts, figures = naive.replay(int(size))
        assert told["drafting"] == drafting
        assert policy.decide(int(size)) == drafts
        for name, drafted in (("drafted", True), ("plain", False)):
            assert told["step_ms"][name] == pytest.approx(figures[drafted][0] * 1e3)
            assert told["tokens_per_step"][name] == pytest.approx(figures[drafted][1])


def run(policy: MtpPolicy, batch: int, steps: int, cost: float, tokens: float) -> list[bool]:
    """Steps that take 1 ms plain and ``cost`` ms drafted for ``tokens`` tokens."""
    taken = []
    for _ in range(steps):
        drafts = policy.decide(batch)
        policy.observe(batch, drafts, (cost if drafts else 1.0) / 1e3, tokens if drafts else 1.0)
        taken.append(drafts)
    return taken


def test_drafting_goes_off_where_it_costs_more_than_it_gives() -> None:
    policy = MtpPolicy()
    run(policy, 32, 300, cost=3.0, tokens=2.0)
    run(policy, 1, 300, cost=1.2, tokens=2.0)
    assert not policy.state()["32"]["drafting"]
    assert policy.state()["1"]["drafting"]
    off = run(policy, 32, 2000, cost=3.0, tokens=2.0)
    assert sum(off) / len(off) < 0.05, "trials must stay rare"
    assert policy.state()["32"]["switches"] == 1


def test_it_comes_back_when_drafts_become_right() -> None:
    policy = MtpPolicy()
    run(policy, 8, 300, cost=1.5, tokens=1.0)
    assert not policy.state()["8"]["drafting"]
    run(policy, 8, 4 * PAUSE, cost=1.5, tokens=3.0)
    assert policy.state()["8"]["drafting"]


def test_a_small_advantage_changes_nothing() -> None:
    policy = MtpPolicy()
    run(policy, 4, 5000, cost=2.0 * 1.05, tokens=2.0)
    assert policy.state()["4"]["drafting"]
    assert policy.state()["4"]["switches"] == 0


def test_one_stalled_step_does_not_decide() -> None:
    policy = MtpPolicy()
    run(policy, 1, 200, cost=1.0, tokens=2.0)
    policy.observe(1, True, 10.0, 2.0)
    run(policy, 1, 1000, cost=1.0, tokens=2.0)
    assert policy.state()["1"]["drafting"]


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one request, not 0"):
        MtpPolicy().decide(0)


def test_the_meter_counts_only_steps_that_follow_each_other() -> None:
    now = iter([0.0, 0.002, 0.010, 0.015, 5.0, 5.003])
    meter = Meter(adaptive=True, clock=lambda: next(now))
    for batch, tokens in ((2, 3.0), (2, 1.0), (4, 2.0), (4, 2.0)):
        assert meter.start(batch)
        meter.finish(tokens)
    meter.interrupt()
    meter.start(4)
    meter.finish(1.0)
    meter.start(4)
    state = meter.policy.state()
    assert state["2"]["steps"]["drafted"] == 1
    assert state["2"]["step_ms"]["drafted"] == pytest.approx(2.0)
    assert state["2"]["tokens_per_step"]["drafted"] == pytest.approx(3.0)
    assert state["4"]["steps"]["drafted"] == 2
    assert state["4"]["step_ms"]["drafted"] == pytest.approx(4.0)


def test_without_adaptation_every_step_drafts() -> None:
    meter = Meter(adaptive=False)
    for _ in range(40):
        assert meter.start(16)
        meter.finish(1.0)
