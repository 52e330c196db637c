"""A view looks at few replicas only, and still ranks as the policy does over all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.router.policy import RoutingPolicy, rank, tie_numbers
from llm.router.prompt import Prompt
from llm.router.slots import Slots
from llm.router.view import RouterView

POLICY = RoutingPolicy(weight=2.0, held_weight=0.5, load_tokens=256.0, overload_tokens=512.0)
BLOCKS = [1, 12, 123, 1234]
states = st.lists(
    # Blocks that are held, of them usable, and the load.
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4).map(lambda n: n * 256.0)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=300, deadline=None)
@given(states, st.integers(1, 22), st.sets(st.integers(0, 19)))
def test_a_view_ranks_as_the_policy_over_everybody(
    state: list[tuple[int, int, float]], first: int, left: set[int]
) -> None:
    view, prompt = RouterView(POLICY), Prompt.uniform(BLOCKS, 64, 256)
    names = [f"replica {i}" for i in range(len(state))]
    view.set_replicas(names)
    for name, (held, stop, load) in zip(names, state, strict=True):
        stops = BLOCKS[min(stop, held) - 1 : min(stop, held)] if stop else []
        view.changed(name, 1.0, load, BLOCKS[:held], stops, [])
    alive = [i for i in range(len(state)) if i not in left] if left else list(range(len(state)))
    usable = np.array([64 * min(u, h) for h, u, _ in state])[alive]
    counted = usable + 0.5 * (np.array([64 * h for h, _, _ in state])[alive] - usable)
    loads = np.array([load for _, _, load in state])[alive]
    slots = Slots()
    for i in alive:
        slots.add(names[i])
    ties = tie_numbers(slots.hashes, BLOCKS[-1])
    order = rank(POLICY, 256, counted, loads, ties, first)
    chosen = {names[i] for i in alive}
    for asked in [chosen] if left else [chosen, None]:
        found = view.rank(prompt, asked, first)
        assert [each.name for each in found] == [names[alive[i]] for i in order]
        assert [each.matched for each in found] == [usable[i] for i in order]
