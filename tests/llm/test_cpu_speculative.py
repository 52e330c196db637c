"""Chain drafting and verification against plain loops and exact distributions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.cpu.speculative import (
    build_chain,
    fill_bonus_tokens,
    rotate_input_ids,
    verify_greedy,
    verify_rejection,
    verify_sampling,
)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5), chosen=st.booleans())
def test_rotate_equals_a_loop(lengths: list[int], chosen: bool) -> None:
    total = sum(lengths)
    ids = torch.arange(100, 100 + total)
    starts = torch.tensor([sum(lengths[:i]) for i in range(len(lengths))])
    new = torch.arange(900, 900 + len(lengths)).unsqueeze(1)
    select = starts + torch.tensor([max(0, n // 2 - 1) for n in lengths]) if chosen else None

    expected = ids.clone()
    for i, n in enumerate(lengths):
        if n == 0:
            continue
        start = int(starts[i])
        expected[start : start + n - 1] = ids[start + 1 : start + n]
        at = start + n - 1 if select is None else int(select[i])
        expected[at] = int(new[i, 0])

    rotate_input_ids(ids, starts, torch.tensor(lengths), new, select)
    assert ids.tolist() == expected.tolist()


def test_rotate_of_the_published_example() -> None:
    # mimo-v2.md section 12: prompt t0..t3, sampled t4, drafts d1, d2 (as 11, 12).
    ids = torch.tensor([0, 1, 2, 3])
    where = torch.tensor([0]), torch.tensor([4])
    seen = [rotate_input_ids(ids, *where, torch.tensor([[t]])).tolist() for t in (4, 11, 12)]
    assert seen == [[1, 2, 3, 4], [2, 3, 4, 11], [3, 4, 11, 12]]


def chain(batch: int, n: int) -> torch.Tensor:
    return torch.arange(batch * n).view(batch, n)


def test_build_chain_tables() -> None:
    batch, n = 2, 4
    mask = torch.zeros(batch * n * n, dtype=torch.bool)
    positions = torch.zeros(batch * n, dtype=torch.long)
    index, following, sibling = (torch.zeros(batch, n, dtype=torch.long) for _ in range(3))
    none = torch.empty(0)
    build_chain(
        none, none, torch.tensor([7, 3]), mask, positions, index, following, sibling, 1, 3, 4, 1
    )
    assert positions.tolist() == [7, 8, 9, 10, 3, 4, 5, 6]
    assert torch.equal(index, chain(batch, n))
    assert following.tolist() == [[1, 2, 3, -1]] * 2
    assert sibling.tolist() == [[-1] * 4] * 2
    assert mask.view(batch, n, n)[1].tolist() == torch.ones(n, n).tril().bool().tolist()


def test_a_tree_is_refused() -> None:
    none = torch.empty(0)
    with pytest.raises(NotImplementedError, match="one chain per request"):
        build_chain(none, none, none, none, none, none, none, none, 2, 3, 4, 1)


@settings(max_examples=60, deadline=None)
@given(batch=st.integers(1, 4), n=st.integers(2, 5), seed=st.integers(0, 10_000))
def test_verify_greedy_equals_a_loop(batch: int, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.randint(0, 3, (batch, n), generator=generator)
    target = torch.randint(0, 3, (batch, n), generator=generator)

    predicts = torch.zeros(batch * n, dtype=torch.int32)
    accept_index = torch.full((batch, n), -1, dtype=torch.int32)
    count = torch.empty(batch, dtype=torch.int32)
    none = torch.empty(0)
    verify_greedy(predicts, accept_index, count, candidates, chain(batch, n), none, none, target)

    for b in range(batch):
        accepted = 0
        while accepted < n - 1 and candidates[b, accepted + 1] == target[b, accepted]:
            accepted += 1
        assert count[b] == accepted
        rows = [b * n + j for j in range(accepted + 1)]
        assert accept_index[b].tolist() == rows + [-1] * (n - 1 - accepted)
        assert predicts[rows].tolist() == target[b, : accepted + 1].tolist()

    bonus = torch.zeros(batch, dtype=torch.long)
    fill_bonus_tokens(predicts, count + 1, bonus, n, batch)
    assert bonus.tolist() == [int(target[b, count[b]]) for b in range(batch)]


def first_tokens(
    sampler: str, batch: int, seed: int, n: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Frequencies of the first token after verification, and the target's probabilities.

    ``n`` rows; with one, nothing was drafted.
    """
    vocabulary = 6
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(1, n, vocabulary, generator=generator).softmax(-1)
    target[0, 0] = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05, 0.0])
    draft = torch.rand(1, max(1, n - 1), vocabulary, generator=generator).softmax(-1)
    target, draft = target.expand(batch, -1, -1), draft.expand(batch, -1, -1)
    if sampler == "point mass":
        drafted = torch.randint(0, vocabulary, (batch, n - 1), generator=generator)
    else:
        drafted = torch.multinomial(draft.reshape(-1, vocabulary), 1, generator=generator).view(
            batch, n - 1
        )
    candidates = torch.cat((torch.zeros(batch, 1, dtype=torch.long), drafted), 1)
    predicts = torch.zeros(batch * n, dtype=torch.int32)
    accept_index = torch.full((batch, n), -1, dtype=torch.int32)
    count = torch.empty(batch, dtype=torch.int32)
    none = torch.empty(0)
    coins = torch.rand(batch, n, generator=generator), torch.rand(batch, generator=generator)
    verify = verify_sampling if sampler == "point mass" else verify_rejection
    verify(
        predicts, accept_index, count, candidates, chain(batch, n), none, none,
        *coins, target, draft, 1.0, 1.0, True,
    )  # fmt: skip
    tokens = predicts.view(batch, n)[:, 0].long()
    return torch.bincount(tokens, minlength=vocabulary) / batch, target[0, 0]


@pytest.mark.parametrize(("sampler", "n"), [("point mass", 3), ("point mass", 1), ("rejection", 3)])
def test_sampling_keeps_the_target_distribution(sampler: str, n: int) -> None:
    got, want = first_tokens(sampler, 40_000, 3, n)
    # Total variation of 40,000 draws over six tokens is 0.005 on average.
    assert 0.5 * (got - want).abs().sum() < 0.015
    assert got[5] == 0


def test_block_verification_is_refused() -> None:
    none = torch.empty(0)
    with pytest.raises(NotImplementedError, match="block verification"):
        verify_rejection(
            none, none, none, none, none, none, none, none, none, none, none, 1.0, 1.0, True,
            block_verification=True,
        )  # fmt: skip
