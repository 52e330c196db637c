"""From what an engine holds to what routers are told, and how they come to agree on it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.router.blocks import Block
from llm.router.ledger import SLACK, Ledger, TokenCounts
from llm.router.policy import RoutingPolicy
from llm.router.probe import Held
from llm.router.prompt import Prompt
from llm.router.report import Report, Reporter
from llm.router.view import RouterView


def test_tokens_are_measured_once_and_the_template_fills_the_rest() -> None:
    asked: list[str] = []

    def encode(text: str) -> int:
        asked.append(text)
        return len(text) // 2

    counts = TokenCounts(encode, most=10)
    blocks = [
        Block(1, b"system..", 0, True),
        Block(2, None, 50, False),
        Block(3, b"question", 0, True),
    ]
    # 4 + 50 + 4 tokens, and 6 of the template for each message.
    assert counts.ends(blocks, 70) == [10, 60, 70]
    assert counts.ends(blocks, 70) == [10, 60, 70]
    assert asked == ["system..", "question"]
    # Never beyond the prompt, whatever the estimate.
    assert counts.ends(blocks, 20) == [4, 20, 20]
    for digest in range(100, 120):
        counts.count(Block(digest, b"xx", 0, False))
    assert len(counts._counts) == 10


def test_stops_fall_on_the_ends_of_blocks() -> None:
    ledger = Ledger(tolerance=4)
    ledger.note("chat", [1, 2, 3], [100, 200, 300])
    cases = {
        # (held, stops): blocks and whether a match may stop there
        (300, (298,)): {1: False, 2: False, 3: True},
        (300, (100 + SLACK, 300)): {1: True, 2: False, 3: True},
        # In the middle of a block: usable for who has all of that block.
        (300, (150,)): {1: False, 2: True, 3: False},
        (205, (204,)): {1: False, 2: True},
        (150, (150,)): {1: False},
        (0, ()): {},
        (400, (400,)): {1: False, 2: False, 3: False},
    }
    for (tokens, stops), expected in cases.items():
        ledger.update({"chat": Held(tokens, stops)})
        assert dict(ledger.blocks) == expected, (tokens, stops)
        ledger.check()


def test_sequences_of_unknown_chats_are_ignored_and_parts_join() -> None:
    ledger = Ledger()
    ledger.note("chat", [1, 2], [100, 200])
    ledger.extend("chat", [3], [300])
    ledger.extend("unknown", [9], [9])
    states = {"chat-0": Held(200, (200,)), "chat-1": Held(300, (300,)), "other": Held(99, (99,))}
    ledger.update(states, lambda name: name.partition("-")[0])
    assert dict(ledger.blocks) == {1: False, 2: True, 3: True}
    assert ledger.last("chat") == (3, 300)
    assert ledger.last("unknown") is None
    with pytest.raises(ValueError, match="1 blocks have 2 ends"):
        ledger.note("x", [1], [1, 2])


def test_chats_are_bounded() -> None:
    ledger = Ledger(most=5)
    for number in range(20):
        ledger.note(str(number), [number], [number])
        ledger.check()
    assert ledger.last("19") == (19, 19)
    assert ledger.last("14") is None


def test_reports_travel_as_plain_data() -> None:
    held = {2**64 - 1: True, 5: False, 7: True}
    report = Report(12.5, 300.0, held, 4, 1, 3.5)
    assert Report.unpack(report.pack()) == report
    assert Report.unpack({}) is None
    empty = Report(1.0, 0.0, {})
    assert Report.unpack(empty.pack()) == empty


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(0, 60), st.booleans(), max_size=40), max_size=8),
    st.randoms(use_true_random=False),
)
def test_gateways_converge_whatever_reports_they_miss(
    history: list[dict[int, bool]], chance: random.Random
) -> None:
    routers = [RouterView(RoutingPolicy()) for _ in range(3)]
    reporter = Reporter(most=8)
    for router in routers:
        router.set_replicas(["a", "b"])
    at = 0.0
    held: dict[int, bool] = {}
    for held in history:
        at += 1
        report = Report.unpack(reporter.make(at, 10.0, held).pack())
        assert report is not None
        assert len(report.blocks) <= len(held)
        for router in routers:
            if chance.random() < 0.6:
                router.report("a", report)
                router.check()
    for _ in range(8):
        at += 1
        report = reporter.make(at, 10.0, held)
        for router in routers:
            router.report("a", report)
    for block, usable in held.items():
        asked = Prompt([block], [100], 100)
        expected = [("a", 100)] if usable else []
        for router in routers:
            best = [(r.name, r.matched) for r in router.rank(asked, first=2) if r.matched]
            assert best == expected
    for router in routers:
        assert router.loads() == {"a": 10.0, "b": 0.0}


def test_a_report_is_bounded_and_covers_everything_in_turns() -> None:
    reporter = Reporter(most=100)
    held = dict.fromkeys(range(1000), True)
    seen: set[int] = set()
    for _ in range(16):
        report = reporter.make(0.0, 0.0, held)
        assert report.slices == 16
        assert len(report.blocks) <= 100
        seen |= report.blocks.keys()
    assert seen == held.keys()


PROMPT = Prompt([1, 2, 3], [100, 200, 300], 310)


def view(*names: str) -> RouterView:
    router = RouterView(RoutingPolicy(overload_tokens=1000.0))
    router.set_replicas(names)
    return router


def test_a_prompt_on_its_way_is_expected_and_the_report_corrects_it() -> None:
    router = view("a", "b", "c")
    router.sent("b", "r1", PROMPT, 1.0)
    assert router.loads() == {"a": 0, "b": 310, "c": 0}
    longer = Prompt([1, 2, 3, 4], [100, 200, 300, 5000], 5010)
    assert router.rank(longer)[0].name == "b"
    # A report from before the prompt was computed does not undo the expectation.
    router.report("b", Report(1.5, 310.0, {}))
    assert router.rank(longer)[0].matched == 300
    router.prefilled("r1")
    assert router.loads()["b"] == 0
    # Nor do two that may have been under way when its first token came.
    for at in (1.7, 1.8):
        router.report("b", Report(at, 0.0, {1: True}))
        assert router.rank(longer)[0].matched == 300
    router.report("b", Report(2.0, 0.0, {1: True}))
    assert router.rank(longer)[0].matched == 100
    # An older report changes nothing.
    router.report("b", Report(1.9, 77.0, {}))
    assert (router.rank(longer)[0].matched, router.loads()["b"]) == (100, 0)
    router.check()


def test_restarted_and_dead_replicas_are_empty() -> None:
    router = view("a", "b")
    router.report("a", Report(1.0, 500.0, {1: True, 2: True}))
    router.sent("a", "r1", PROMPT, 2.0)
    router.set_replicas(["b", "a2"])
    assert {ranked.name for ranked in router.rank(PROMPT, first=9)} == {"b", "a2"}
    assert all(ranked.matched == 0 for ranked in router.rank(PROMPT, first=9))
    router.prefilled("r1")
    router.report("a", Report(3.0, 5.0, {1: True}))
    router.sent("a", "r2", PROMPT, 3.0)
    router.set_replicas(["b", "a2", "a"])
    assert all(ranked.matched == 0 for ranked in router.rank(PROMPT, first=9))
    assert router.loads() == {"b": 0, "a2": 0, "a": 0}
    router.check()


def test_a_retry_elsewhere_moves_the_load() -> None:
    router = view("a", "b")
    router.sent("a", "r1", PROMPT, 1.0)
    router.sent("b", "r1", PROMPT, 2.0)
    # The first attempt's end arrives late.
    router.prefilled("r1", "a")
    assert router.loads() == {"a": 0, "b": 310}
    router.prefilled("r1", "b")
    assert router.loads() == {"a": 0, "b": 0}
    router.check()


def test_the_state_for_buckets_counts_what_would_be_computed() -> None:
    router = view("a", "b")
    router.report("a", Report(1.0, 40.0, {1: True, 2: True}, bytes_per_token=3.0))
    router.report("b", Report(1.0, 60.0, {}, bytes_per_token=5.0))
    uncached, state = router.state(PROMPT)
    assert uncached == 110
    assert (state.replicas, state.load) == (2, 100.0)
    assert router.bytes_per_token == 4.0
    assert view().state(PROMPT)[1].replicas == 0
    assert view().rank(PROMPT) == []


def test_changes_say_the_same_as_reports() -> None:
    whole, parts = view("a", "b"), view("a", "b")
    held = {1: False, 2: True, 3: True}
    whole.report("a", Report(2.0, 40.0, {1: False, 2: True}))
    parts.changed("a", 1.0, 90.0, list(held), [2, 3], [])
    parts.changed("a", 2.0, 40.0, [], [], [3])
    parts.changed("gone", 2.0, 40.0, [1], [1], [])
    for router in (whole, parts):
        assert [(r.name, r.matched) for r in router.rank(PROMPT)] == [("a", 200)]
        assert router.loads() == {"a": 40.0, "b": 0.0}
        router.check()
