"""The mel front end against torchaudio, and on odd inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchaudio
from audio_tiny import TOKENIZER

from encoders.audio import mel as module
from encoders.audio.config import TokenizerConfig
from encoders.audio.mel import MelFrontEnd, mel_bands
from encoders.audio.model import AudioModel
from encoders.errors import MediaError

CONFIG = TokenizerConfig.from_dict(TOKENIZER)
FRONT_END = MelFrontEnd(CONFIG, torch.device("cpu"))


def noise(channels: int, samples: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return 0.1 * generator.standard_normal((channels, samples), dtype=np.float32)


def test_bands_equal_torchaudio() -> None:
    expected = torchaudio.functional.melscale_fbanks(481, 0.0, 12_000.0, 128, 24_000)
    assert torch.allclose(mel_bands(CONFIG), expected, atol=3e-5)


@pytest.mark.parametrize("samples", [481, 720, 24_000, 24_239, 24_240])
def test_log_mel_equals_torchaudio(samples: int) -> None:
    spectrogram = torchaudio.transforms.MelSpectrogram(
        24_000, n_fft=960, win_length=960, hop_length=240, n_mels=128, power=1.0, center=True
    )
    wave = noise(1, samples)
    expected = spectrogram(torch.from_numpy(wave[0])).clamp(min=1e-7).log().T
    found = FRONT_END(wave, 24_000, 481)
    assert found.shape == (1 + samples // 240, 128)
    assert torch.allclose(found, expected, atol=1e-3)


def test_steps_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    wave = noise(1, 24_000)
    whole = FRONT_END(wave, 24_000, 481)
    monkeypatch.setattr(module, "_FRAMES_PER_STEP", 7)
    assert torch.allclose(FRONT_END(wave, 24_000, 481), whole, atol=1e-5)


def test_silence_reads_as_the_floor() -> None:
    found = FRONT_END(np.zeros((2, 4_800), np.float32), 24_000, 481)
    assert torch.equal(found, torch.full((21, 128), 1e-7).log())


@pytest.mark.parametrize("channels", [1, 2, 6, 16])
@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000])
def test_one_second_of_any_layout(
    exact_model: AudioModel, channels: int, rate: int
) -> None:  # case 52
    wave = noise(channels, rate)
    found = exact_model.preprocess(wave, rate)
    assert found.shape == (101, 128)
    each = [torchaudio.functional.resample(torch.from_numpy(row), rate, 24_000) for row in wave]
    mono = torch.stack(each).mean(0)
    expected = FRONT_END(mono[None].numpy(), 24_000, 481)
    # Down-sampled noise leaves nothing above 4 kHz at 8 kHz, where logs magnify rounding.
    assert torch.allclose(found.exp(), expected.exp(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("samples", [0, 1, 2, 10, 159, 480, 481])
@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
def test_very_short_sounds_are_followed_by_silence(
    exact_model: AudioModel, samples: int, rate: int
) -> None:  # case 54
    found = exact_model.preprocess(noise(2, samples), rate)
    assert torch.isfinite(found).all()
    assert found.shape[0] == exact_model.lengths.mel_frames(samples, rate)
    (rows,) = exact_model.encode([found])
    assert rows.shape[0] == exact_model.count_tokens(samples, rate)


def test_swapped_axes_are_refused(exact_model: AudioModel) -> None:  # case 51
    with pytest.raises(MediaError, match="480 sound channels"):
        exact_model.preprocess(noise(480, 2), 48_000)
    assert exact_model.preprocess(noise(2, 480), 48_000).shape == (3, 128)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rate", [24_000, 44_100, 44_101])
@pytest.mark.parametrize("place", [0, 12_345, -1])
def test_samples_that_are_not_finite_are_refused(
    exact_model: AudioModel, bad: float, rate: int, place: int
) -> None:
    wave = noise(2, rate)
    wave[1, place] = bad
    with pytest.raises(MediaError, match="not finite"):
        exact_model.preprocess(wave, rate)


def test_a_read_only_array_is_accepted_in_silence(
    exact_model: AudioModel, recwarn: pytest.WarningsRecorder
) -> None:
    wave = noise(1, 4_800)
    wave.flags.writeable = False
    exact_model.preprocess(wave, 24_000)
    assert [str(w.message) for w in recwarn] == []


def test_other_types_and_ranks_are_a_programming_error(exact_model: AudioModel) -> None:
    with pytest.raises(TypeError, match=r"float32 \[channels, n\], got int16"):
        exact_model.preprocess(np.zeros((1, 10), np.int16), 24_000)
    with pytest.raises(TypeError, match="float32"):
        exact_model.preprocess(np.zeros(10, np.float32), 24_000)
