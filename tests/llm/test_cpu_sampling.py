"""Sampling helpers against plain definitions."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from llm.cpu.sampling import murmur_hash32, row_argmax, top_k_renorm, top_p_renorm


def distribution(seed: int, rows: int = 3, vocabulary: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocabulary, generator=generator) * 2).softmax(-1)


@given(seed=st.integers(0, 500), k=st.integers(1, 12))
def test_top_k(seed: int, k: int) -> None:
    probs = distribution(seed)
    got = top_k_renorm(probs, torch.full((3,), k))
    for row, kept in zip(probs, got, strict=True):
        best = row.topk(min(k, len(row))).indices
        expected = torch.zeros_like(row)
        expected[best] = row[best] / row[best].sum()
        torch.testing.assert_close(kept, expected)


@given(seed=st.integers(0, 500), p=st.floats(0.0, 1.0))
def test_top_p(seed: int, p: float) -> None:
    probs = distribution(seed)
    got = top_p_renorm(probs, p)
    for row, kept in zip(probs, got, strict=True):
        mass, chosen = 0.0, []
        for token in row.argsort(descending=True).tolist():
            if chosen and mass >= torch.tensor(p, dtype=row.dtype):
                break
            chosen.append(token)
            mass = float(row[chosen].sum())
        expected = torch.zeros_like(row)
        expected[chosen] = row[chosen] / row[chosen].sum()
        torch.testing.assert_close(kept, expected, atol=1e-5, rtol=1e-4)


def plain_murmur(blocks: list[int]) -> int:
    """MurmurHash3 x86 32 bit over four-byte blocks, seed 0, in Python integers."""

    def rotate(x: int, r: int) -> int:
        return ((x << r) | (x >> (32 - r))) & 0xFFFFFFFF

    h = 0
    for block in blocks:
        k = rotate(block * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        h = (rotate(h ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= 4 * len(blocks)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> shift)) * factor & 0xFFFFFFFF
    return h ^ (h >> 16)


@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**31 - 1),
    column=st.integers(0, 2**31 - 1),
)
def test_murmur(seed: int, position: int, column: int) -> None:
    got = murmur_hash32(torch.tensor([seed]), torch.tensor([position]), torch.tensor([column]))
    blocks = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, position, column]
    assert got.dtype == torch.uint32
    assert int(got[0, 0]) == plain_murmur(blocks)


def test_row_argmax() -> None:
    assert row_argmax(torch.tensor([[1.0, 3.0], [5.0, 2.0]])).tolist() == [1, 0]
