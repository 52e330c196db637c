"""Resampling against torchaudio, and by what it must do to a sine."""

from __future__ import annotations

import math
import resource

import pytest
import torch
import torchaudio

from encoders.audio import resample as module
from encoders.audio.resample import resample

RATES = [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 192_000]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("extra", [0, 1, 77])
def test_equals_torchaudio(rate: int, extra: int) -> None:
    wave = torch.randn(rate // 4 + extra, generator=torch.Generator().manual_seed(rate))
    expected = torchaudio.functional.resample(wave, rate, 24_000)
    found = resample(wave, rate, 24_000)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_both_forms_agree(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wave = torch.randn(5_003, generator=torch.Generator().manual_seed(1))
    by_frames = resample(wave, rate, 24_000)
    monkeypatch.setattr(module, "_DENSE_ENTRIES", 0)
    assert torch.allclose(resample(wave, rate, 24_000), by_frames, atol=1e-5)


@pytest.mark.parametrize("rate", [22_050, 44_101])
def test_steps_do_not_change_the_result(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wave = torch.randn(9_001, generator=torch.Generator().manual_seed(2))
    whole = resample(wave, rate, 24_000)
    monkeypatch.setattr(module, "_STEP_ELEMENTS", 3_000)
    assert torch.allclose(resample(wave, rate, 24_000), whole, atol=1e-6)


@pytest.mark.parametrize("rate", [*RATES, 7_919, 44_101, 767_999])
def test_a_sine_keeps_its_frequency_level_and_duration(rate: int) -> None:  # case 52
    tone = torch.sin(2 * math.pi * 1_000 * torch.arange(rate // 2, dtype=torch.float64) / rate)
    found = resample(tone.float(), rate, 24_000)
    assert found.shape[0] == math.ceil((rate // 2) * 24_000 / rate)
    at = torch.arange(found.shape[0], dtype=torch.float64) / 24_000
    inner = slice(200, found.shape[0] - 200)
    expected = torch.sin(2 * math.pi * 1_000 * at)
    assert (found - expected)[inner].abs().max() < 0.01


def test_tones_above_the_target_band_are_removed() -> None:
    tone = torch.sin(2 * math.pi * 15_000 * torch.arange(48_000) / 48_000)
    assert resample(tone, 48_000, 24_000)[200:-200].abs().max() < 0.05


@pytest.mark.parametrize("samples", [0, 1, 2, 10, 159])
@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100, 44_101])
def test_very_short_sounds(samples: int, rate: int) -> None:  # case 54
    found = resample(torch.ones(samples), rate, 24_000)
    assert found.shape[0] == math.ceil(samples * 24_000 / rate)
    assert torch.isfinite(found).all()


def test_a_rate_without_common_divisor_needs_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resample(torch.zeros(441_010), 44_101, 24_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400_000  # KiB; the dense kernel alone would take 4 GiB
