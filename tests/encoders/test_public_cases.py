"""Publicly reported faults of encoders, cases 1-31 and 51-68: where each is tested, and the rest.

| case | what went wrong elsewhere | tested in |
|---|---|---|
| 1, 3 | orientation ignored | test_decode: test_orientation_is_applied …; test_preprocess |
| 4 | CMYK | test_decode: test_cmyk |
| 6 | WebP, animated | test_decode: test_webp, test_animation_is_its_first_frame |
| 8 | decompression bombs | test_decode: the_header_alone, a_real_bomb, a_long_animation |
| 9 | tiny and thin pictures | test_decode, test_size; here |
| 10 | two size functions | test_image_encoder: test_counts_follow_from_the_size_alone |
| 11 | damaged files | test_decode; test_image_encoder: test_bad_images_harm_no_other |
| 13, 15 | data URIs | tests/app/test_data_uri |
| 16, 17 | limits and endless bodies | tests/app: test_data_uri, test_fetch, test_gateway |
| 18, 20 | redirects, local files | tests/app: test_fetch, test_gateway |
| 22 | references inside files | tests/video/test_source |
| 23, 24, 27 | keys that collide | test_digest |
| 25 | 16 bits of identity in KV keys | here; tests/llm: test_media_keys, test_parity |
| 29 | options missing from keys | test_digest, tests/app/test_pipeline |
| 31 | decode before the key | test_encode_once, tests/app/test_pipeline |
| 51, 52, 54 | axes, rates, lengths of sounds | audio/: test_audio_mel, test_audio_resample; here |
| 56, 64 | a failing encoder | test_batcher, both replica tests, tests/app/test_pipeline |
| 57 | sample formats, priming | tests/video/test_sound |
| 58 | batches of one | test_batcher, both replica tests; here: exported as a metric |
| 60, 61 | items above the cache, pins | test_cache, test_encode_once, llm/test_waiting_media |
| 63 | bursts without an answer | tests/app/test_pipeline; here |
| 66 | polling | test_batcher: test_the_event_loop_stays_free |
| 68 | the same item encoded often | test_single_flight, test_encode_once |
"""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from vision_reference import TINY, write_checkpoint

from encoders import metrics
from encoders.audio_encoder import AudioEncoder
from encoders.batcher import Batcher, BatchLimits
from encoders.digest import media_digest
from encoders.errors import EncoderBusy, MediaError
from encoders.image_encoder import ImageEncoder
from encoders.vision.decode import _rgb

sys.path.insert(0, str(Path(__file__).parent / "audio"))
import audio_tiny


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> str:
    small = {"image_max_pixels": 64 * 256, "video_max_pixels": 64 * 256}
    return str(write_checkpoint(tmp_path_factory.mktemp("vision"), TINY, small))


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(audio_tiny.write_checkpoint(tmp_path_factory.mktemp("audio")))


def png(height: int, width: int, value: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (value, 0, 255 - value)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("mode", Image.MODES)
def test_every_mode_of_pillow_becomes_rgb(mode: str) -> None:
    # case 4: also those that no file of ours can be made in
    found = _rgb(Image.new(mode, (6, 4)))
    assert (found.mode, found.size) == ("RGB", (6, 4))


async def test_thin_pictures_are_encoded_or_refused_and_harm_nothing(vision: str) -> None:
    # case 9
    encoder = ImageEncoder(vision, {"warm_up": False})
    sizes = [(1, 1), (1, 500), (500, 1), (9, 2000), (2000, 9), (16, 16)]
    calls = [encoder.encode_image(png(*size), f"{i:064x}") for i, size in enumerate(sizes)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for (height, width), result in zip(sizes, results, strict=True):
        if min(height, width) >= 8 and max(height, width) > 200 * min(height, width):
            assert isinstance(result, MediaError)
            assert "aspect ratio" in result.reason
        else:
            assert not isinstance(result, BaseException)
            assert result.n_rows >= 1
    await encoder.check()
    await encoder.close()


def test_no_two_of_many_items_share_an_identity() -> None:
    # case 25: not even by the bits that a shorter key would keep
    digests = [media_digest("image", number.to_bytes(4), {}, "m") for number in range(1000)]
    assert len({digest[:16] for digest in digests}) == len(digests)


async def test_sounds_with_swapped_axes_are_refused_before_a_thread_is_taken(audio: str) -> None:
    # case 51: 2 samples of 480 channels, or an array the wrong way round
    encoder = AudioEncoder(audio, {"warm_up": False})
    with pytest.raises(MediaError, match="480 sound channels"):
        await encoder.encode_samples(np.zeros((480, 2), np.float32), 48_000, "a" * 64)
    assert (await encoder.stats())["preparation_seconds"] == 0
    await encoder.close()


async def test_sounds_of_all_rates_and_channels_in_one_batch(audio: str) -> None:
    # case 52, ragged batches
    encoder = AudioEncoder(audio, {"warm_up": False})
    rng = np.random.default_rng(0)
    kinds = [(8_000, 1), (11_025, 2), (22_050, 6), (44_100, 16), (96_000, 2), (24_000, 1)]
    sounds = [
        (rng.uniform(-0.3, 0.3, (channels, rate)).astype(np.float32), rate)
        for rate, channels in kinds
    ]
    calls = [encoder.encode_samples(*sound, f"{i:064x}") for i, sound in enumerate(sounds)]
    embeddings = await asyncio.gather(*calls)
    assert len({embedding.n_rows for embedding in embeddings}) == 1  # one second each
    await encoder.close()


async def test_a_long_sound_goes_in_parts_and_is_the_same(audio: str) -> None:
    encoders = [
        AudioEncoder(audio, {"warm_up": False, "max_batch_frames": frames})
        for frames in (16, 100_000)
    ]
    sound = np.random.default_rng(1).uniform(-0.3, 0.3, (1, 24_000 * 61)).astype(np.float32)
    parts, whole = [await encoder.encode_track(sound, 24_000) for encoder in encoders]
    np.testing.assert_allclose(parts.data, whole.data, atol=1e-4)
    assert (await encoders[0].stats())["items"] == 2  # a segment of a minute and the rest
    assert (await encoders[1].stats())["items"] == 1
    for encoder in encoders:
        await encoder.check()
        await encoder.close()


class Values:
    """A histogram or gauge that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def observe(self, value: float) -> None:
        self.values.append(value)

    set = observe


async def test_the_distribution_of_batch_sizes_is_a_metric() -> None:
    # case 58: a batch size of 1 under load must not go unnoticed
    kept = [Values() for _ in range(6)]

    def forward(items: Sequence[int]) -> Sequence[int]:
        time.sleep(0.005)
        return items

    batcher: Batcher[int, int] = Batcher(
        forward, BatchLimits(100), observer=metrics.BatchMetrics(*kept)
    )

    async def client() -> None:
        for _ in range(5):
            await batcher.submit(1, 1)

    await asyncio.gather(*(client() for _ in range(16)))
    items, work, seconds, waits, queued, queued_work = (kind.values for kind in kept)
    assert sum(items) == sum(work) == len(waits) == 80
    assert sum(items) / len(items) > 4
    assert len(seconds) == len(queued) == len(queued_work) == len(items)
    assert min(seconds) > 0
    assert queued[-1] == queued_work[-1] == 0
    await batcher.close()


def test_there_are_no_metrics_outside_of_serve() -> None:
    assert metrics.batch_metrics("image", "patches") is None


async def test_a_burst_on_a_slow_encoder_gets_an_answer_each(vision: str) -> None:
    # case 63: rows or a refusal, and nothing is left behind
    encoder = ImageEncoder(
        vision, {"warm_up": False, "queue_timeout_s": 0.15, "max_batch_items": 4}
    )
    forward = encoder._batcher._forward

    def slow(items: Any) -> Any:
        time.sleep(0.03)
        return forward(items)

    encoder._batcher._forward = slow
    calls = [encoder.encode_image(png(32, 32, i), f"{i:064x}") for i in range(200)]
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    served = [result for result in results if not isinstance(result, BaseException)]
    assert served
    refused = [result for result in results if isinstance(result, BaseException)]
    assert refused
    assert all(isinstance(result, EncoderBusy) for result in refused)
    stats = await encoder.stats()
    assert stats["queued_items"] == stats["pending_calls"] == stats["pending_work"] == 0
    assert stats["waiting_for_preparation"] == 0
    await encoder.check()
    encoder._batcher._forward = forward
    assert (await encoder.encode_image(png(32, 32, 7), "f" * 64)).n_rows == 16
    await encoder.close()


async def test_replicas_report_their_pending_work(vision: str) -> None:
    # case 91: the autoscaling signal counts patches, clips included, not requests
    encoder = ImageEncoder(vision, {"warm_up": False})
    idle = await encoder.record_autoscaling_stats()
    assert (idle["pending_work"], idle["busy"]) == (0, 0)
    frames = np.zeros((8, 64, 64, 3), np.uint8)
    calls = [
        asyncio.create_task(encoder.encode_image(png(32, 32), "a" * 64)),
        asyncio.create_task(encoder.encode_frames(frames, "b" * 64)),
    ]
    await asyncio.sleep(0)
    loaded = await encoder.record_autoscaling_stats()
    assert loaded["pending_work"] >= 4 * 16 * 16
    await asyncio.gather(*calls)
    after = await encoder.record_autoscaling_stats()
    assert after["pending_work"] == 0
    assert after["busy"] > 0
    assert all(isinstance(value, float) for value in after.values())
    await encoder.close()
