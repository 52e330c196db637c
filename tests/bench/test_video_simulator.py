"""The simulator against a clock that is advanced step by step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.video_simulator import efficiency, makespan


def stepwise(plan: int, opening: int, parts: list[int], decoders: int) -> int:
    """The same in whole seconds, one second at a time."""
    todo = list(parts)
    left = [0] * decoders
    opened = [True] + [False] * (decoders - 1)
    clock = plan
    while True:
        for number in range(decoders):
            if left[number] == 0 and todo:
                left[number] = todo.pop(0) + (0 if opened[number] else opening)
                opened[number] = True
        if not any(left):
            return clock
        left = [max(0, rest - 1) for rest in left]
        clock += 1


@given(
    plan=st.integers(0, 5),
    opening=st.integers(0, 3),
    parts=st.lists(st.integers(1, 9), max_size=20),
    decoders=st.integers(1, 8),
)
def test_against_a_clock(plan, opening, parts, decoders):
    assert makespan(plan, opening, parts, decoders) == stepwise(plan, opening, parts, decoders)


def test_known_cases():
    assert makespan(1, 0, [2, 2, 2, 2], 1) == 9
    assert makespan(1, 0, [2, 2, 2, 2], 2) == 5
    assert makespan(1, 5, [2, 2], 2) == 8
    assert makespan(1, 0, [], 3) == 1
    assert efficiency(0, 0, [1] * 16, 8) == 1.0
    assert efficiency(0, 0, [1] * 9, 8) == 9 / 16
    with pytest.raises(ValueError, match="at least one"):
        makespan(1, 0, [1], 0)
