"""The growth exponent that the prefill benchmark is held to."""

from __future__ import annotations

import pytest

from bench.benchmarks.swa_prefill import slope


@pytest.mark.parametrize("exponent", [0.9, 1.0, 2.0])
def test_slope_finds_the_exponent(exponent: float) -> None:
    lengths = [1024, 2048, 4096, 16384]
    assert slope(lengths, [3 * n**exponent for n in lengths]) == pytest.approx(exponent)
