"""The pool machine: rules by which hypothesis leads requests through a world of pools."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_schedule, get_spec

from tests.llm.pool_machine_world import DRAFTS, World

EIGHTHS = st.integers(0, 8)
TOKENS = st.lists(st.integers(1, 2), min_size=DRAFTS, max_size=DRAFTS)
LEAVING = st.sampled_from(["finish", "finish", "retract", "abort"])
PICK = st.integers(0, 2)


@contextmanager
def opened(
    build: type[World], page: int, window: int, drafting: bool, interval: int = 1
) -> Iterator[World]:
    """A world under the settings that it needs; ``interval``: tokens between frees of the
    window pool."""
    with (
        get_schedule().override(page_size=page),
        get_spec().override(speculative_algorithm="EAGLE" if drafting else None),
        envs.SGLANG_SWA_EVICTION_INTERVAL.override(interval),
    ):
        world = build(page, window, drafting)
        try:
            with world.settings():
                yield world
        finally:
            world.shut()


class PoolMachine(RuleBasedStateMachine):
    """Up to three requests at a time; prompts repeat, extend and fork earlier ones."""

    page, window, drafting = 1, 4, False
    build: type[World] = World
    counts: Counter[str]

    @initialize(interval=st.sampled_from([1, 7]))
    def open(self, interval: int) -> None:
        self.life = ExitStack()
        life = opened(self.build, self.page, self.window, self.drafting, interval)
        self.world = self.life.enter_context(life)
        self.seen: list[list[int]] = [[]]

    def pick(self, requests: list[Any], which: int) -> Any:
        return requests[which % len(requests)]

    @rule(base=st.integers(0, 5), kept=EIGHTHS, tail=EIGHTHS, seed=PICK, chunk=EIGHTHS)
    def start(self, base: int, kept: int, tail: int, seed: int, chunk: int) -> None:
        world = self.world
        stem = self.seen[-1 - base % len(self.seen)]
        count = 1 + tail * 3 * world.span // 8
        new = random.Random(seed).choices((1, 2), k=count)
        prompt = [*stem[: len(stem) * kept // 8], *new][: world.longest]
        self.seen.append(prompt)
        world.arrive(prompt)
        self.resume(chunk)

    @precondition(lambda self: self.world.waiting)
    @rule(chunk=EIGHTHS)
    def resume(self, chunk: int) -> None:
        self.world.admit(self.world.waiting[0], self.chunk(chunk))

    def chunk(self, eighths: int) -> int:
        return self.world.page + eighths * self.world.span // 4

    @precondition(lambda self: self.world.prefilling)
    @rule(which=PICK, chunk=EIGHTHS)
    def next_chunk(self, which: int, chunk: int) -> None:
        self.world.extend(self.pick(self.world.prefilling, which), self.chunk(chunk))

    @precondition(lambda self: self.world.running)
    @rule(which=PICK, everyone=st.booleans(), steps=st.integers(1, 8), tokens=TOKENS)
    def decode(self, which: int, everyone: bool, steps: int, tokens: list[int]) -> None:
        world = self.world
        for step in range(steps):
            able = [r for r in world.running if len(world.tokens(r)) < world.longest]
            if not able:
                return
            batch = able if everyone else [self.pick(able, which)]
            if world.drafting:
                done = world.verify(batch, 1 + (which + step) % DRAFTS, tokens)
            else:
                done = world.decode(batch, tokens[step % DRAFTS])
            if not done and len(world.running) > 1:
                world.retract(world.running[-1])
            world.check()

    @precondition(lambda self: self.world.running)
    @rule(which=PICK, how=LEAVING, beyond_stop=PICK)
    def leave(self, which: int, how: str, beyond_stop: int) -> None:
        world = self.world
        request = self.pick(world.running, which)
        if how == "finish":
            self.seen.append(world.tokens(request))
            world.finish(request, beyond_stop)
        elif how == "retract":
            world.retract(request)
        else:
            world.abort(request)

    @precondition(lambda self: self.world.prefilling)
    @rule(which=PICK, really=EIGHTHS)
    def abort_prefill(self, which: int, really: int) -> None:
        if really > 5:
            self.world.abort(self.pick(self.world.prefilling, which))

    @rule(full=EIGHTHS, swa=EIGHTHS)
    def evict(self, full: int, swa: int) -> None:
        self.world.evict(full * self.world.span // 4, swa * self.world.span // 4)

    @rule(base=st.integers(0, 5), kept=EIGHTHS)
    def look_up(self, base: int, kept: int) -> None:
        stem = self.seen[-1 - base % len(self.seen)]
        self.world.lookup(stem[: len(stem) * kept // 8])

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "world"):
            self.world.sound()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                # After a failure the pools are no longer what close() would judge.
                if sys.exc_info()[0] is None:
                    self.world.close()
                self.counts.update(self.world.counts)
            finally:
                self.life.close()


def run(
    build: type[World],
    page: int,
    window: int,
    drafting: bool,
    examples: int,
    *phases: Phase,
    machine: type[PoolMachine] = PoolMachine,
) -> Counter[str]:
    """Run the machine and return how often each thing happened."""
    counts: Counter[str] = Counter()
    members = {
        "page": page,
        "window": window,
        "drafting": drafting,
        "build": build,
        "counts": counts,
    }
    chosen = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=phases or (Phase.generate, Phase.shrink),
    )
    run_state_machine_as_test(type("Machine", (machine,), members), settings=chosen)
    return counts
