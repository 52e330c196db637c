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
sessions, and media keys. test_tier_machine.py adds the host and store tiers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import Phase

from tests.llm.pool_machine import run
from tests.llm.pool_machine_faults import FAULTS, RejectedKept
from tests.llm.pool_machine_world import World, configured

# What each test must have met; without pressure the machine would prove little.
EVENTS = (
    "hit", "refused", "part of a prompt", "finished", "aborted",
    "retracted", "full pressed out", "window pressed out", "closed",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def sglang_as_needed() -> Iterator[None]:
    with configured():
        yield


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
