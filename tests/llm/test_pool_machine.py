"""Random lives of requests over SGLang's prefix cache with two pools, slot by slot.

Real here: the prefix tree (SGLang's default core), the allocator and its two pools, the request
records, and SGLang's functions for match, lock, allocation with eviction, checkpoints, sliding
windows, decode, speculative steps (reserve, accept, write over the rejected), finish, abort and
retraction. Instead of a forward pass, a tag is written to each slot that would have been written.

Checked in every step: a hit's slots, what a step reads and a request's slots hold exactly their
own tokens (the last window of them in the window pool); a finished request is found again; every
page of both pools is free, in the tree or a request's, exactly once; and free + evictable +
protected + held = total.

Not covered: the KV values themselves, the scheduler's admission and its choice of what to run
(requests come by chance and wait while free + evictable is short), overlapped scheduling,
sessions, media keys, and the host and store tiers.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
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
from sglang.srt.runtime_context import get_context, get_schedule, get_spec

from llm.cpu import slots
from llm.cpu.patches import Patch, apply
from tests.llm.pool_machine_faults import FAULTS, RejectedKept
from tests.llm.pool_machine_world import DRAFTS, World

# What each test must have met; without pressure the machine would prove little.
EVENTS = (
    "hit", "refused", "part of a prompt", "finished", "aborted",
    "retracted", "full pressed out", "window pressed out", "closed",
)  # fmt: skip
EIGHTHS = st.integers(0, 8)
TOKENS = st.lists(st.integers(1, 2), min_size=DRAFTS, max_size=DRAFTS)
LEAVING = st.sampled_from(["finish", "finish", "retract", "abort"])
PICK = st.integers(0, 2)


@pytest.fixture(scope="module", autouse=True)
def configured() -> Iterator[None]:
    """SGLang's configuration of this process, and the one patch that its slot tables need."""
    apply([Patch("sglang.srt.mem_cache.allocation", "assign_req_to_token_pool_func",
                 slots.assign_req_to_token)])  # fmt: skip
    fields = {
        "attention_backend": "torch_native",
        "speculative_num_steps": DRAFTS - 1,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": DRAFTS,
    }
    with get_context().override_server_args(**fields):
        yield


class PoolMachine(RuleBasedStateMachine):
    """Up to three requests at a time; prompts repeat, extend and fork earlier ones."""

    page, window, drafting = 1, 4, False
    build: type[World] = World
    counts: Counter[str]

    @initialize(interval=st.sampled_from([1, 7]))
    def open(self, interval: int) -> None:
        self.undo = [
            get_schedule().override(page_size=self.page),
            get_spec().override(speculative_algorithm="EAGLE" if self.drafting else None),
            envs.SGLANG_SWA_EVICTION_INTERVAL.override(interval),
        ]
        for change in self.undo:
            change.__enter__()
        self.world = self.build(self.page, self.window, self.drafting)
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
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                # After a failure the pools are no longer what close() would judge.
                if sys.exc_info()[0] is None:
                    self.world.close()
                self.counts.update(self.world.counts)
            finally:
                for change in self.undo:
                    change.__exit__(None, None, None)


def run(
    build: type[World], page: int, window: int, drafting: bool, examples: int, *phases: Phase
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
    run_state_machine_as_test(type("Machine", (PoolMachine,), members), settings=chosen)
    return counts


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("page", [1, 4, 16])
def test_every_slot_has_one_owner_and_its_own_tokens(page: int, drafting: bool) -> None:
    counts: Counter[str] = Counter()
    for window in (4, 8, 32):
        counts += run(World, page, window, drafting, 20)
    for event in (*EVENTS, "verified" if drafting else "decoded"):
        assert counts[event] > 0, f"the machine never saw: {event}"


@pytest.mark.parametrize(("build", "message"), FAULTS)
@pytest.mark.parametrize("page", [1, 4])
def test_a_broken_step_is_found(page: int, build: type[World], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(build, page, 8, build is RejectedKept, 1000, Phase.generate)
