"""The whole audio path: counts, batches, long sounds, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from encoders.audio import load_audio_model
from encoders.audio.model import AudioModel
from encoders.errors import MediaError


def sound(seconds: float, rate: int, channels: int = 1, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    samples = round(seconds * rate)
    return 0.1 * generator.standard_normal((channels, samples), dtype=np.float32)


@pytest.mark.parametrize("seconds", [1, 10, 60])
def test_golden_counts_are_the_rows(exact_model: AudioModel, seconds: int) -> None:
    mel = exact_model.preprocess(sound(seconds, 16_000), 16_000)
    (rows,) = exact_model.encode([mel])
    expected = {1: 7, 10: 63, 60: 376}[seconds]
    assert rows.shape == (expected, 20)
    assert exact_model.count_tokens(seconds * 16_000, 16_000) == expected


def test_counts_equal_rows_for_every_length_in_a_range(exact_model: AudioModel) -> None:
    mels = [torch.randn(frames, 128) for frames in range(1, 100)]
    for mel, rows in zip(mels, exact_model.encode(mels), strict=True):
        assert rows.shape[0] == -(-mel.shape[0] // 16)
    for samples in range(0, 9_000, 431):
        for rate in (8_000, 44_100):
            frames = exact_model.preprocess(sound(samples / rate, rate), rate).shape[0]
            assert exact_model.count_tokens(samples, rate) == -(-frames // 16)


def test_batched_equals_single(exact_model: AudioModel) -> None:
    lengths = [101, 7, 350, 350, 34, 1, 101]
    mels = [
        torch.randn(n, 128, generator=torch.Generator().manual_seed(i))
        for i, n in enumerate(lengths)
    ]
    batched = exact_model.encode(mels)
    for mel, rows in zip(mels, batched, strict=True):
        (single,) = exact_model.encode([mel])
        assert torch.allclose(rows, single, atol=1e-9)
    backwards = exact_model.encode(mels[::-1])[::-1]
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(batched, backwards, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batched_equals_single_in_served_types(tiny_audio: Path, dtype: str) -> None:
    """Rounding may move a code that sits between two code vectors, nothing else."""
    tokenizer = load_audio_model(tiny_audio, "cpu", dtype).tokenizer
    lengths = [350, 350, 101, 34, 7]
    mels = [torch.randn(n, 128, generator=torch.Generator().manual_seed(n)) for n in lengths]
    packed = tokenizer(torch.cat(mels), lengths)
    single = torch.cat([tokenizer(mel, [mel.shape[0]]) for mel in mels])
    assert (packed == single).float().mean() > (0.999 if dtype == "float32" else 0.97)


def test_a_neighbour_cannot_leak(exact_model: AudioModel) -> None:
    mel = torch.randn(123, 128, generator=torch.Generator().manual_seed(0))
    (alone,) = exact_model.encode([mel])
    loud = torch.full((124, 128), torch.nan)
    assert torch.allclose(exact_model.encode([loud, mel, loud])[1], alone, atol=1e-9)


def test_long_sounds_are_encoded_by_segments(exact_model: AudioModel) -> None:
    mel = torch.randn(12_100, 128, generator=torch.Generator().manual_seed(0))
    (rows,) = exact_model.encode([mel])
    parts = torch.cat(exact_model.encode([mel[:6_000], mel[6_000:12_000], mel[12_000:]]))
    assert rows.shape[0] == 757 == exact_model.lengths.tokens_of_mel(12_100)
    assert torch.allclose(rows, parts, atol=1e-9)


def test_batch_frames_bounds_a_pass_and_changes_nothing(
    exact_model: AudioModel, tiny_audio: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = load_audio_model(tiny_audio, "cpu", "float64", {"batch_frames": 100})
    sizes: list[int] = []
    forward = bounded.tokenizer.forward

    def spy(mel: torch.Tensor, segments: list[int]) -> torch.Tensor:
        sizes.append(mel.shape[0])
        return forward(mel, segments)

    monkeypatch.setattr(bounded.tokenizer, "forward", spy)
    mels = [torch.randn(n, 128) for n in (40, 250, 60, 40, 30)]
    found = bounded.encode(mels)
    assert sizes == [250, 100, 70]
    expected = exact_model.encode(mels)
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(found, expected, strict=True))


def test_nothing_gives_nothing(exact_model: AudioModel) -> None:
    assert exact_model.encode([]) == []
    with pytest.raises(ValueError, match="mel must be"):
        exact_model.encode([torch.zeros(0, 128)])


def test_too_long_is_refused_by_count_and_by_preprocess(tiny_audio: Path) -> None:
    model = load_audio_model(tiny_audio, "cpu", "float32", {"max_seconds": 2})
    assert model.count_tokens(16_000, 8_000) == 13
    with pytest.raises(MediaError, match=r"sound of 2\.5 s is longer than the limit of 2 s"):
        model.count_tokens(20_000, 8_000)
    with pytest.raises(MediaError, match="limit of 2 s"):
        model.preprocess(sound(2.5, 8_000), 8_000)


def test_threads_may_share_a_model(exact_model: AudioModel) -> None:
    def work(seed: int) -> torch.Tensor:
        return exact_model.encode([exact_model.preprocess(sound(0.5, 44_100, 2, seed), 44_100)])[0]

    alone = [work(seed) for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(work, range(6)))
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(alone, together, strict=True))


def test_warm_up_runs(tiny_audio: Path) -> None:
    load_audio_model(tiny_audio, "cpu", "bfloat16").warm_up()
