"""KV slot bookkeeping against loops."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from llm.cpu.slots import (
    assign_draft_cache_locs,
    assign_req_to_token,
    extend_cache_locs,
    fill_accept_cache_locs,
    fill_front_cache_locs,
)

TABLE = torch.arange(5 * 40).view(5, 40) + 1000
RANGES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=4)


@given(ranges=RANGES)
def test_extend_and_assign_are_inverse_and_equal_loops(ranges: list[tuple[int, int]]) -> None:
    pools = torch.tensor([4, 0, 2, 1][: len(ranges)])
    starts = torch.tensor([s for s, _ in ranges])
    ends = torch.tensor([s + n for s, n in ranges])
    expected = [
        int(TABLE[pool, position])
        for pool, (start, n) in zip(pools.tolist(), ranges, strict=True)
        for position in range(start, start + n)
    ]
    slots = extend_cache_locs(pools, TABLE, starts, ends, len(ranges), 6, "cpu")
    assert slots.shape == (len(ranges) * 6,)
    assert slots[: len(expected)].tolist() == expected

    table = torch.zeros_like(TABLE)
    assign_req_to_token(pools, table, starts, ends, slots, len(ranges))
    for pool, (start, n) in zip(pools.tolist(), ranges, strict=True):
        assert torch.equal(table[pool, start : start + n], TABLE[pool, start : start + n])
    assert int((table > 0).sum()) == len(expected)


def test_draft_locs_and_positions() -> None:
    out = torch.zeros(6, dtype=torch.long)
    positions = torch.zeros(2, dtype=torch.long)
    assign_draft_cache_locs(
        torch.tensor([3, 1]), TABLE, torch.tensor([10, 4]), out, 1, 3, positions=positions
    )
    assert out.tolist() == [*TABLE[3, 10:13].tolist(), *TABLE[1, 4:7].tolist()]
    assert positions.tolist() == [10, 4]


def test_front_and_accepted_slots_are_packed() -> None:
    window = torch.arange(8) + 50
    front = torch.zeros(3, dtype=torch.long)
    fill_front_cache_locs(torch.tensor([1, 2]), window, front)
    assert front.tolist() == [50, 54, 55]

    accepted = torch.zeros(8, dtype=torch.long)
    fill_accept_cache_locs(torch.tensor([[0, 1, -1, -1], [4, -1, -1, -1]]), window, accepted, 8)
    assert accepted[:3].tolist() == [50, 51, 54]
