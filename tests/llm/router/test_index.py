"""The prefix index against a model of sets, and its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.router.index import PrefixIndex
from llm.router.prompt import Prompt

NAMES = ("a", "b", "c", "d")
BLOCK = 16


def chain(*numbers: int) -> list[int]:
    """Digests of a path in a small tree: equal exactly for equal paths."""
    digests, path = [], 1
    for number in numbers:
        path = path * 5 + number + 1
        digests.append(path)
    return digests


def prompt(blocks: list[int], extra: int = 3) -> Prompt:
    ends = [BLOCK * (i + 1) for i in range(len(blocks))]
    return Prompt(blocks, ends, len(blocks) * BLOCK + extra)


class NaiveIndex:
    """Sets of (block -> usable) per replica, searched for every replica and every length."""

    def __init__(self) -> None:
        self.held: dict[str, dict[int, bool]] = {}

    def stored(self, name: str, blocks: list[int], usable: set[int] | None) -> None:
        for block in blocks:
            self.held.setdefault(name, {})[block] = usable is None or block in usable

    def removed(self, name: str, blocks: list[int]) -> None:
        for block in blocks:
            self.held.get(name, {}).pop(block, None)

    def match(self, asked: Prompt) -> dict[str, int]:
        found = {}
        for name, blocks in self.held.items():
            best = 0
            for count in range(1, len(asked.blocks) + 1):
                prefix = asked.blocks[:count]
                if all(block in blocks for block in prefix) and blocks[prefix[-1]]:
                    best = asked.ends[count - 1]
            if best:
                found[name] = best
        return found

    def reach(self, asked: Prompt) -> dict[str, int]:
        """Tokens that are held from the start, usable or not."""
        found = {}
        for name, blocks in self.held.items():
            count = 0
            while count < len(asked.blocks) and asked.blocks[count] in blocks:
                count += 1
            if count:
                found[name] = asked.ends[count - 1]
        return found


paths = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(lambda path: chain(*path))
names = st.sampled_from(NAMES)
events = st.one_of(
    st.tuples(st.just("stored"), names, paths, st.none() | st.sets(st.integers(0, 4))),
    st.tuples(st.just("removed"), names, paths, st.none()),
    st.tuples(st.just("cleared"), names, paths, st.none()),
    st.tuples(st.just("dropped"), names, paths, st.none()),
    st.tuples(st.just("replaced"), names, paths, st.none()),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(events, max_size=30), st.lists(paths, min_size=1, max_size=5))
def test_agrees_with_sets(history: list, asked: list[list[int]]) -> None:
    index, naive = PrefixIndex(), NaiveIndex()
    for kind, name, blocks, stops in history:
        if kind == "stored":
            usable = None if stops is None else {blocks[i] for i in stops if i < len(blocks)}
            index.stored(name, blocks, usable)
            naive.stored(name, blocks, usable)
        elif kind == "removed":
            index.removed(name, blocks)
            naive.removed(name, blocks)
        elif kind == "cleared":
            index.cleared(name)
            naive.held[name] = {}
        elif kind == "dropped":
            index.drop_replica(name)
            naive.held.pop(name, None)
        else:
            index.replace(name, blocks, None, 2, 0)
            odd = {b: u for b, u in naive.held.get(name, {}).items() if b % 2}
            naive.held[name] = odd | dict.fromkeys(blocks, True)
        index.check()
    for blocks in asked:
        expected = naive.match(prompt(blocks))
        assert index.match(prompt(blocks)) == expected
        slots = index.slots
        stops, held = index.reach(prompt(blocks))
        assert {slots.names[i]: int(n) for i, n in enumerate(stops) if n} == expected
        for name in index.replicas:
            assert index.usable(prompt(blocks), name) == expected.get(name, 0)
        reached = {slots.names[i]: int(n) for i, n in enumerate(held) if n}
        assert reached == naive.reach(prompt(blocks))
        index.check()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(names, paths), max_size=60), paths)
def test_a_bound_forgets_but_never_invents(history: list, asked: list[int]) -> None:
    index, naive = PrefixIndex(max_pairs=40), NaiveIndex()
    for name, blocks in history:
        index.stored(name, blocks)
        naive.stored(name, blocks, None)
        index.check()
        assert len(index) <= 60
        # What was stored last is always there.
        assert index.match(prompt(blocks))[name] == len(blocks) * BLOCK
    truth = naive.match(prompt(asked))
    for name, tokens in index.match(prompt(asked)).items():
        assert tokens <= truth[name]


def test_a_match_keeps_a_prefix_young() -> None:
    index = PrefixIndex(max_pairs=64)
    hot = chain(0, 1, 2)
    index.stored("a", hot)
    for number in range(500):
        index.stored("b", [10_000 + number])
        assert index.match(prompt(hot)) == {"a": 3 * BLOCK}
    index.check()
    assert len(index) <= 128


def test_one_event_larger_than_the_bound_keeps_its_start() -> None:
    index = PrefixIndex(max_pairs=8)
    blocks = list(range(100, 150))
    index.stored("a", blocks)
    index.check()
    assert len(index) <= 16
    assert index.match(prompt(blocks)) == {"a": len(index) * BLOCK}


def test_under_windows_a_prefix_inside_a_longer_one_is_not_promised() -> None:
    index = PrefixIndex()
    conversation = chain(0, 0, 0, 0)
    index.stored("a", conversation, usable=[conversation[-1]])
    branch = chain(0, 0, 1)
    assert index.match(prompt(conversation)) == {"a": 4 * BLOCK}
    assert index.match(prompt(branch)) == {}
    # The engine found a window there after all, or keeps one now.
    index.stored("a", conversation[:2], usable=[conversation[1]])
    assert index.match(prompt(branch)) == {"a": 2 * BLOCK}
    assert index.match(prompt(conversation)) == {"a": 4 * BLOCK}


def test_evicted_prefixes_and_restarts_are_forgotten() -> None:
    index = PrefixIndex()
    blocks = chain(0, 1, 2)
    index.stored("a", blocks)
    index.stored("b", blocks)
    index.removed("a", blocks[2:])
    assert index.match(prompt(blocks)) == {"a": 2 * BLOCK, "b": 3 * BLOCK}
    index.cleared("b")
    assert index.match(prompt(blocks)) == {"a": 2 * BLOCK}
    index.drop_replica("a")
    assert index.match(prompt(blocks)) == {}
    assert index.replicas == ["b"]
    index.stored("c", blocks)
    assert index.match(prompt(blocks)) == {"c": 3 * BLOCK}
    index.check()


def test_prompts_must_be_consistent() -> None:
    with pytest.raises(ValueError, match="2 blocks have 1 ends"):
        Prompt([1, 2], [16], 32)
    with pytest.raises(ValueError, match="blocks end at 32 of 20 tokens"):
        Prompt([1, 2], [16, 32], 20)
    assert Prompt.uniform([1, 2, 3], 512, 1100).ends == [512, 1024, 1100]
    asked = prompt(chain(0, 1, 2))
    assert [asked.depth(t) for t in (0, 15, 16, 31, 32, 1000)] == [0, 0, 1, 1, 2, 3]
    with pytest.raises(ValueError, match="max_pairs must be at least 2, got 1"):
        PrefixIndex(max_pairs=1)
