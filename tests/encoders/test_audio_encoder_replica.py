"""The audio encoder replica on the small checkpoint of the audio tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch

from encoders.audio import load_audio_model
from encoders.audio_encoder import AudioEncoder
from encoders.embedding import RowsArray, audio_layout
from encoders.errors import MediaError
from encoders.options import AudioEncoderOptions

sys.path.insert(0, str(Path(__file__).parent / "audio"))
from audio_tiny import write_checkpoint

DIGEST = "0" * 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("audio")))


@pytest_asyncio.fixture
async def encoder(checkpoint: str) -> AsyncIterator[AudioEncoder]:
    replica = AudioEncoder(checkpoint, {"max_seconds": 30.0, "num_cpus": 1})
    yield replica
    await replica.close()


def sound(seconds: float, rate: int, channels: int = 1, seed: int = 0) -> np.ndarray:
    count = round(seconds * rate)
    noise = np.random.default_rng(seed).standard_normal((channels, count), dtype=np.float32)
    return noise * 0.2


async def test_sounds_are_batched_and_equal_to_single_ones(
    encoder: AudioEncoder, checkpoint: str
) -> None:
    # case 58
    assert await encoder.ready()
    model = load_audio_model(checkpoint)
    sounds = [
        (sound(0.2 + seed / 7, rate, channels, seed), rate)
        for seed, (rate, channels) in enumerate([(24_000, 1), (48_000, 2), (8_000, 1)] * 5)
    ]
    calls = [
        encoder.encode_samples(samples, rate, f"{index:064x}")
        for index, (samples, rate) in enumerate(sounds)
    ]
    embeddings = await asyncio.gather(*calls)
    for (samples, rate), embedding in zip(sounds, embeddings, strict=True):
        count = model.count_tokens(samples.shape[1], rate)
        assert embedding.modality == "audio"
        assert embedding.layout == audio_layout(count)
        expected = model.encode([model.preprocess(samples, rate)])[0]
        assert isinstance(embedding.rows, RowsArray)
        torch.testing.assert_close(embedding.rows.tensor(), expected, atol=1e-4, rtol=1e-3)
    stats = await encoder.stats()
    assert stats["items"] == len(sounds)
    assert stats["mean_batch_size"] > 1


async def test_bad_sounds_harm_no_other(encoder: AudioEncoder) -> None:
    # case 56
    good = sound(0.5, 24_000)
    broken = good.copy()
    broken[0, 100] = np.nan
    calls = [
        encoder.encode_samples(good, 24_000, "a" * 64),
        encoder.encode_samples(broken, 24_000, "b" * 64),
        encoder.encode_samples(good, 3, "c" * 64),
        encoder.encode_samples(sound(31, 8_000), 8_000, "d" * 64),
        encoder.encode_samples(good, 24_000, "e" * 64),
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results[1:4]:
        assert isinstance(result, MediaError)
    for result in (results[0], results[4]):
        assert not isinstance(result, BaseException)
        assert result.n_rows == 4


@pytest.mark.parametrize("count", [0, 1, 2, 10, 159])
async def test_tiny_sounds(encoder: AudioEncoder, count: int) -> None:
    # case 54
    embedding = await encoder.encode_samples(np.zeros((2, count), np.float32), 44_100, DIGEST)
    assert embedding.n_rows == 1


async def test_put_applies_to_parts_and_not_to_tracks(checkpoint: str) -> None:
    options = AudioEncoderOptions(warm_up=False)
    encoder = AudioEncoder(checkpoint, options, put=lambda rows: f"{len(rows)} rows")
    samples = sound(1.0, 24_000)
    samples.setflags(write=False)
    assert (await encoder.encode_samples(samples, 24_000, DIGEST)).rows == "7 rows"
    assert len(await encoder.encode_track(samples, 24_000)) == 7
    await encoder.close()


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="attention must be one of"):
        AudioEncoderOptions.of({"attention": "none"})
    with pytest.raises(ValueError, match="max_batch_frames"):
        AudioEncoderOptions.of({"max_batch_frames": 0})
