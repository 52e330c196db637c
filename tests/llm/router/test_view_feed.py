"""A router's view fed with changes, and what a prefix that is held but not usable is worth."""

from __future__ import annotations

import pytest

from llm.router.policy import RoutingPolicy
from llm.router.prompt import Prompt
from llm.router.report import Report
from llm.router.view import RouterView

BLOCKS = [1, 12, 123]


def prompt(blocks: list[int]) -> Prompt:
    return Prompt.uniform(blocks, 100, 100 * len(blocks))


def test_changes_are_what_is_held_from_then_on() -> None:
    view = RouterView(RoutingPolicy(held_weight=0.0))
    view.set_replicas(["a", "b", "c"])
    view.changed("b", 1.0, 50.0, BLOCKS, [12], [])
    best = view.rank(prompt(BLOCKS))[0]
    assert (best.name, best.matched) == ("b", 200)
    assert view.loads()["b"] == 50.0
    view.changed("b", 2.0, 0.0, [], [], [123, 12])
    assert view.rank(prompt(BLOCKS))[0].matched == 0
    # Of replicas that are gone or unknown nothing is kept.
    view.changed("z", 3.0, 9.0, BLOCKS, BLOCKS, [])
    assert set(view.loads()) == {"a", "b", "c"}
    view.set_replicas(["a", "c"])
    assert {found.name for found in view.rank(prompt(BLOCKS), first=3)} == {"a", "c"}
    view.check()


def test_a_prompt_goes_where_its_prefix_is_held_even_if_no_match_may_stop_there() -> None:
    for name in ("a", "b", "c"):
        view = RouterView()
        view.set_replicas(["a", "b", "c"])
        view.changed(name, 1.0, 0.0, BLOCKS, [], [])
        best = view.rank(prompt([1, 12, 124]))[0]
        assert (best.name, best.matched) == (name, 0)
        # A usable match elsewhere is worth more than one that is only held.
        other = "a" if name != "a" else "b"
        view.changed(other, 1.0, 0.0, [1, 12], [12], [])
        best = view.rank(prompt([1, 12, 124]))[0]
        assert (best.name, best.matched) == (other, 200)
    with pytest.raises(ValueError, match="held_weight must be from 0 to 1"):
        RoutingPolicy(held_weight=2.0)


def test_idle_replicas_share_new_prompts_by_work_and_not_by_count() -> None:
    view = RouterView()
    view.set_replicas([f"replica {i}" for i in range(4)])
    sent = dict.fromkeys(view.loads(), 0)
    for number in range(400):
        size = 1 + number % 9
        new = prompt([1000 * number + i for i in range(size)])
        name = view.rank(new)[0].name
        view.sent(name, str(number), new, now=float(number))
        view.prefilled(str(number))
        sent[name] += new.tokens
    assert max(sent.values()) - min(sent.values()) <= 900


def report(at: float, blocks: list[int]) -> Report:
    return Report(at, 0.0, dict.fromkeys(blocks, True))


def test_a_report_that_was_under_way_does_not_forget_a_prompt() -> None:
    view = RouterView()
    view.set_replicas(["a", "b", "c"])
    for at, name in enumerate("abc"):
        view.report(name, report(float(at), []))
    new = prompt(BLOCKS)
    name = view.rank(new)[0].name
    view.sent(name, "first", new, now=5.0)
    view.prefilled("first")
    # Measured before the prompt's KV was noted, and told after it.
    for at in (10.0, 11.0):
        view.report(name, report(at, []))
        best = view.rank(new)[0]
        assert (best.name, best.matched) == (name, 300)
        view.check()
    # What the replica still does not know of now is not there.
    view.report(name, report(12.0, [1]))
    assert view.rank(new)[0].matched == 100
    view.sent(name, "second", new, now=13.0)
    view.prefilled("second")
    view.set_replicas([other for other in "abc" if other != name])
    view.check()
    assert view.rank(new)[0].matched == 0
