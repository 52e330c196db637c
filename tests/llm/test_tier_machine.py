"""The pool machine with every tier: SGLang's HiCache below the device, our store below that.

Real here, besides what test_pool_machine.py names: SGLang's hybrid cache controller with its
threads, its host pools and their pages, write-through, load-back, the scheduler's own prefetch,
waiting for it and dropping it; our copies between the pools, page hashes, tree hooks and
`NodeStorage` with a memory and a disk tier in real files, so small that pages move and leave.

Checked between any two steps, besides: every page of both host pools is free or in one node of the
tree and holds that node's tokens; no host page is lost; index, files and budgets of both tiers of
the store agree. A hit that came through any tier must hold exactly its own tokens, keys and values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from llm.cpu.patches import Patch, _host_pool_patches
from llm.page_hash import page_hashes
from tests.llm.pool_machine import EIGHTHS, PICK, PoolMachine, run
from tests.llm.pool_machine_world import configured
from tests.llm.test_pool_machine import EVENTS
from tests.llm.tier_machine_faults import TIER_FAULTS
from tests.llm.tier_machine_world import TieredWorld

TIER_EVENTS = (
    *EVENTS, "came from the host", "came from the store", "host emptied", "left the queue",
    "moved to the disk",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def sglang_as_needed() -> Iterator[None]:
    native = Patch("sglang.srt.mem_cache.cpp_utils.native_hash", "get_native_hash", page_hashes)
    with configured(native, *_host_pool_patches()):
        yield


class TierMachine(PoolMachine):
    """Also empties tiers, and lets requests go while the store reads for them."""

    world: TieredWorld

    @rule(host=st.booleans())
    def forget(self, host: bool) -> None:
        self.world.forget(host)

    @rule(base=st.integers(0, 5), chunk=EIGHTHS)
    def again_from_below(self, base: int, chunk: int) -> None:
        """An earlier prompt or conversation again, which only the store has."""
        self.world.forget(host=True)
        self.start(base=base, kept=8, tail=0, seed=0, chunk=chunk)

    @precondition(lambda self: self.world.waiting)
    @rule(which=PICK)
    def leave_queue(self, which: int) -> None:
        self.world.leave_queue(self.pick(self.world.waiting, which))

    @rule(base=st.integers(0, 5), kept=EIGHTHS)
    def ask_and_go(self, base: int, kept: int) -> None:
        """A request that leaves at once: the store may be reading for it."""
        stem = self.seen[-1 - base % len(self.seen)]
        self.world.arrive([*stem[: len(stem) * kept // 8], 1, 2])
        self.world.leave_queue(self.world.waiting[-1])


class RustWorld(TieredWorld):
    """The prefix tree that engines run."""

    core = None


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (TieredWorld, [(1, 4, False), (4, 8, True), (16, 32, False)]),
        (RustWorld, [(1, 8, True), (4, 32, False), (16, 8, True)]),
    ],
)
def test_every_tier_keeps_its_slots_and_their_tokens(
    build: type[TieredWorld], shapes: list[tuple[int, int, bool]]
) -> None:
    counts: Counter[str] = Counter()
    for page, window, drafting in shapes:
        counts += run(build, page, window, drafting, 15, machine=TierMachine)
    for event in TIER_EVENTS:
        assert counts[event] > 0, f"the machine never saw: {event}"


@pytest.mark.parametrize(("build", "message"), TIER_FAULTS)
def test_a_broken_transfer_is_found(build: type[TieredWorld], message: str) -> None:
    # The store reads in a thread: what failed once need not fail when hypothesis repeats it, and
    # then the error comes in a group.
    failure = pytest.RaisesExc(AssertionError, match=message)
    with pytest.RaisesGroup(failure, allow_unwrapped=True, flatten_subgroups=True):
        run(build, 4, 8, False, 1000, Phase.generate, machine=TierMachine)
