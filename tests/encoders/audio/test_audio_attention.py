"""Attention plans against softmax under an explicit mask, one segment at a time."""

from __future__ import annotations

import pytest
import torch
from audio_reference import masked_attention, rotate_each, span_mask

from encoders.audio.attention import FullPlan, LocalPlan, attention_plan
from encoders.audio.config import Span
from encoders.audio.rotary import rotary_table, rotate

CPU = torch.device("cpu")
SPANS = [
    Span(None, 0),
    Span(None, None),
    Span(128, 0),
    Span(16, 0),
    Span(3, 0),
    Span(0, 0),
    Span(5, 7),
    Span(None, 4),
    Span(4, None),
]
PACKS = [[1], [300], [1, 2, 3], [65, 64, 63, 1], [200, 200, 17, 129, 128]]


@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("lengths", PACKS, ids=str)
def test_plan_equals_explicit_mask(span: Span, lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(sum(lengths))
    q, k, v = torch.randn(3, sum(lengths), 2, 8, dtype=torch.float64, generator=generator)
    found = attention_plan(lengths, span, CPU)(q, k, v).split(lengths)
    parts = (x.split(lengths) for x in (q, k, v))
    for n, out, *inputs in zip(lengths, found, *parts, strict=True):
        expected = masked_attention(*inputs, span_mask(n, span))
        assert torch.allclose(out, expected, atol=1e-12)


def test_local_layers_cost_the_window_not_the_length() -> None:
    plan = attention_plan([3_000, 3_000], Span(128, 0), CPU)
    assert isinstance(plan, LocalPlan)
    assert plan.mask.numel() < 2 * 3_100 * (2 * 128 + 1)


def test_a_window_wider_than_every_segment_is_computed_as_full() -> None:
    assert isinstance(attention_plan([40, 100], Span(128, 0), CPU), FullPlan)


def test_a_neighbour_full_of_nan_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 2, 8, generator=generator)
    for span in SPANS:
        alone = attention_plan([90], span, CPU)(x, x, x)
        both = torch.cat([torch.full((70, 2, 8), torch.nan), x])
        found = attention_plan([70, 90], span, CPU)(both, both, both)[70:]
        assert torch.allclose(found, alone, atol=1e-6)


@pytest.mark.parametrize("theta", [10_000.0, 640_000.0])
def test_rotary_equals_complex_multiplication(theta: float) -> None:
    x = torch.randn(50, 3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table = rotary_table(torch.arange(50), 16, theta, torch.float64)
    assert torch.allclose(rotate(x, table), rotate_each(x, theta), atol=1e-12)


def test_partial_rotary_leaves_the_rest() -> None:
    x = torch.randn(5, 2, 12)
    out = rotate(x, rotary_table(torch.arange(5), 8, 10_000, torch.float32))
    assert torch.equal(out[..., 8:], x[..., 8:])
    assert torch.equal(out[0], x[0])
    assert not torch.allclose(out[1:, :, :8], x[1:, :, :8])
