"""The probe on a model tree with two pools, against the definition of a usable prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from llm.router.probe import Node, PrefixProbe, held_of

WINDOW = 4


@dataclass
class TreeNode:
    parent: int
    start: int
    end: int
    full: bool = True
    swa: bool = True


class FakeTree:
    """Nodes by id; the root is 0."""

    def __init__(self) -> None:
        self.nodes: dict[int, TreeNode] = {}
        self.count = 0

    def add(self, parent: int, length: int) -> int:
        self.count += 1
        start = self.nodes[parent].end if parent else 0
        self.nodes[self.count] = TreeNode(parent, start, start + length)
        return self.count

    def split(self, node: int, length: int) -> None:
        """The deeper part keeps the id."""
        old = self.nodes[node]
        self.count += 1
        self.nodes[self.count] = TreeNode(
            old.parent, old.start, old.start + length, old.full, old.swa
        )
        old.parent, old.start = self.count, old.start + length

    def evict_leaf(self, node: int) -> None:
        if not any(other.parent == node for other in self.nodes.values()):
            del self.nodes[node]

    def path(self, node: int) -> Sequence[Node] | None:
        found = []
        while node:
            if node not in self.nodes:
                return None
            n = self.nodes[node]
            found.append(Node(node, n.start, n.end, n.full, n.swa))
            node = n.parent
        return found[::-1]


def naive(path: Sequence[Node]) -> tuple[int, list[int]]:
    """Token by token."""
    full = [node.full for node in path for _ in range(node.start, node.end)]
    swa = [node.swa for node in path for _ in range(node.start, node.end)]
    tokens = next((i for i, held in enumerate(full) if not held), len(full))
    stops = [
        node.end
        for node in path
        if node.end <= tokens and all(swa[max(0, node.end - WINDOW) : node.end])
    ]
    return tokens, stops


nodes = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=8)


@settings(max_examples=300, deadline=None)
@given(nodes)
def test_held_agrees_with_a_walk_over_tokens(parts: list[tuple[int, bool, bool]]) -> None:
    path, at = [], 0
    for number, (length, full, swa) in enumerate(parts):
        path.append(Node(number, at, at + length, full, swa))
        at += length
    held = held_of(path, WINDOW)
    assert (held.tokens, list(held.stops)) == naive(path)
    without = held_of(path, 0)
    assert without.stops == tuple(node.end for node in path if node.end <= without.tokens)


def test_what_is_evicted_is_not_reported() -> None:
    tree, probe = FakeTree(), PrefixProbe(WINDOW)
    system = tree.add(0, 10)
    one, two = tree.add(system, 6), tree.add(system, 8)
    probe.saw("one", one)
    probe.saw("two", two)
    probe.refresh(tree)
    assert probe.states()["one"].tokens == 16
    assert probe.states()["two"].stops == (10, 18)
    # The window before the branch is gone: only the leaf's own is left.
    tree.nodes[system].swa = False
    tree.evict_leaf(one)
    probe.refresh(tree)
    assert probe.states()["two"].stops == (18,)
    # What is left of the other is the beginning of this one: nothing to add.
    assert set(probe.states()) == {"two"}
    probe.check()
    tree.evict_leaf(two)
    tree.evict_leaf(system)
    probe.refresh(tree)
    assert probe.states() == {}
    probe.check()


def test_a_conversation_is_followed_by_its_latest_turn() -> None:
    tree, probe = FakeTree(), PrefixProbe(WINDOW)
    first = tree.add(0, 10)
    probe.saw("turn 1", first)
    probe.refresh(tree)
    second = tree.add(first, 7)
    probe.saw("turn 2", second)
    # A branch inside the first turn splits its node.
    tree.split(first, 5)
    probe.refresh(tree)
    assert set(probe.states()) == {"turn 2"}
    assert probe.states()["turn 2"].stops == (5, 10, 17)
    probe.check()


def test_the_number_of_sequences_is_bounded_and_all_get_their_turn() -> None:
    tree, probe = FakeTree(), PrefixProbe(WINDOW, most=20)
    leaves = [tree.add(0, 5 + i) for i in range(50)]
    for number, leaf in enumerate(leaves):
        probe.saw(str(number), leaf)
        probe.check()
    probe.refresh(tree, count=3)
    assert set(probe.states()) == {str(i) for i in range(30, 50)}
    for leaf in leaves:
        tree.evict_leaf(leaf)
    for _ in range(8):
        probe.refresh(tree, count=3)
        probe.check()
    assert probe.states() == {}
    probe.saw("x", tree.add(0, 5))
    probe.cleared()
    assert probe.states() == {}
    probe.check()
