"""The image encoder replica on a small random checkpoint."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from vision_reference import (
    TINY,
    ReferenceTower,
    random_tensors,
    reference_patches,
    write_checkpoint,
)

from encoders.embedding import Rows, RowsArray, image_layout
from encoders.errors import MediaError
from encoders.image_encoder import ImageEncoder
from encoders.options import ImageEncoderOptions
from encoders.vision.runtime import PixelLimits, Prepared, VisionRuntime

DIGEST = "0" * 64
SMALL = {"image_max_pixels": 64 * 256, "video_max_pixels": 64 * 256}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("vision"), TINY, SMALL))


@pytest.fixture(scope="module")
def runtime(checkpoint: str) -> VisionRuntime:
    return VisionRuntime(checkpoint, ImageEncoderOptions())


@pytest_asyncio.fixture
async def encoder(checkpoint: str) -> AsyncIterator[ImageEncoder]:
    replica = ImageEncoder(checkpoint, {"max_batch_patches": 600, "replicas": 3})
    yield replica
    await replica.close()


def name(index: int) -> str:
    return f"{index:064x}"


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def reference(frames: np.ndarray) -> torch.Tensor:
    """Rows of frames whose size needs no resize, without any of our code."""
    patches = reference_patches(frames, TINY["patch_size"], 2, 2)
    grid = (-(-len(frames) // 2), frames.shape[1] // 4, frames.shape[2] // 4)
    return ReferenceTower(TINY, random_tensors(TINY), "softmax_column")(patches, grid)


def assert_rows(rows: Any, expected: torch.Tensor) -> None:
    assert isinstance(rows, RowsArray)
    torch.testing.assert_close(rows.tensor(), expected, atol=2e-4, rtol=2e-4)


async def test_an_image_becomes_its_rows(encoder: ImageEncoder) -> None:
    assert await encoder.ready()
    pixels = picture(32, 48)
    embedding = await encoder.encode_image(png(pixels), "a" * 64)
    assert embedding.digest == "a" * 64
    assert embedding.layout == image_layout(4 * 6)
    assert_rows(embedding.rows, reference(pixels[None]))


async def test_concurrent_images_are_batched_and_equal_to_single_ones(
    encoder: ImageEncoder,
) -> None:
    # case 58
    sizes = [(8 * h, 8 * w) for h in (2, 3, 5) for w in (2, 4, 7)] * 3
    images = [picture(*size, seed) for seed, size in enumerate(sizes)]
    calls = [encoder.encode_image(png(image), name(i)) for i, image in enumerate(images)]
    embeddings = await asyncio.gather(*calls)
    for pixels, embedding in zip(images, embeddings, strict=True):
        assert_rows(embedding.rows, reference(pixels[None]))
    stats = await encoder.stats()
    assert stats["items"] == len(images)
    assert stats["mean_batch_size"] > 1
    assert stats["queued_work"] == 0


async def test_bad_images_harm_no_other(encoder: ImageEncoder) -> None:
    # case 11
    good = png(picture(32, 32))
    noise = io.BytesIO()
    Image.fromarray(picture(64, 64)).save(noise, "JPEG")
    bad = [b"", good[:60], noise.getvalue()[:-400], png(picture(1700, 8)), b"no image"]
    calls = [encoder.encode_image(data, name(i)) for i, data in enumerate([good, *bad, good])]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results[1:-1]:
        assert isinstance(result, MediaError)
    expected = reference(picture(32, 32)[None])
    for result in (results[0], results[-1]):
        assert not isinstance(result, BaseException)
        assert_rows(result.rows, expected)


async def test_a_failing_item_in_the_pass_harms_no_other(checkpoint: str) -> None:
    # cases 56 and 64
    encoder = ImageEncoder(checkpoint)
    forward = encoder._batcher._forward

    def faulty(items: Any) -> Any:
        time.sleep(0.02)
        if any(item.grid == (1, 4, 4) for item in items):
            raise RuntimeError("device fault")
        return forward(items)

    encoder._batcher._forward = faulty
    images = [picture(24, 24), picture(16, 16), picture(24, 32)]
    calls = [encoder.encode_image(png(image), name(i)) for i, image in enumerate(images)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[1], RuntimeError)
    for index in (0, 2):
        assert not isinstance(results[index], BaseException)
    await encoder.close()


@pytest.mark.parametrize("count", [1, 2, 5, 12])
async def test_clips(encoder: ImageEncoder, count: int) -> None:
    # 12 frames of 140 patches: several parts under the limit of 600 patches
    frames = np.stack([picture(40, 56, seed) for seed in range(count)])
    frames.setflags(write=False)
    rows, grid = await encoder.encode_frames(frames, DIGEST)
    assert grid == (-(-count // 2), 10, 14)
    assert_rows(rows, reference(frames))


async def test_parts_of_a_clip_equal_the_whole(encoder: ImageEncoder) -> None:
    frames = np.stack([picture(120, 200, seed) for seed in range(6)])
    options = {"total_max_pixels": 3 * 8_000}
    whole = await encoder.encode_frames(frames, DIGEST, options)
    assert whole.grid[1] * whole.grid[2] * 16 <= 8_000
    parts = [
        await encoder.encode_frames(part, DIGEST, {**options, "sampled_frames": 6})
        for part in (frames[:2], frames[2:6])
    ]
    joined = RowsArray.concat([part.rows for part in parts])
    assert_rows(joined, whole.rows.tensor())


async def test_put_gives_a_reference(checkpoint: str) -> None:
    store: list[RowsArray] = []

    def put(rows: RowsArray) -> str:
        store.append(rows)
        return "reference"

    encoder = ImageEncoder(checkpoint, ImageEncoderOptions(warm_up=False), put)
    embedding = await encoder.encode_image(png(picture(32, 32)), DIGEST)
    assert embedding.rows == "reference"
    assert embedding.n_rows == len(store[0]) == 16
    await encoder.close()


async def test_options(encoder: ImageEncoder) -> None:
    data = png(picture(320, 320))
    full = await encoder.encode_image(data, DIGEST, {"detail": "high", "max_pixels": None})
    assert full.layout == image_layout(256)
    small = await encoder.encode_image(data, DIGEST, {"max_pixels": 64 * 16})
    assert isinstance(small.layout[1], Rows)
    assert small.layout[1].count == 16
    for options, message in (
        ({"size": 3}, "unknown option 'size'"),
        ({"max_pixels": 0}, "max_pixels must be a positive"),
        ({"max_pixels": True}, "max_pixels must be a positive"),
        ({"max_pixels": "9"}, "max_pixels must be a positive"),
        ({"max_pixels": 10**9}, "at most 16384"),
        ({"max_pixels": 640, "min_pixels": 641}, "exceeds"),
        ({"detail": "huge"}, "low, high or auto"),
    ):
        with pytest.raises(MediaError, match=message):
            await encoder.encode_image(data, DIGEST, options)  # type: ignore[arg-type]


def test_low_detail() -> None:
    assert PixelLimits.parse({"detail": "low"}).between(8192, 8388608) == (8192, 262144)
    assert PixelLimits.parse({"detail": "low"}).between(4096, 100_000) == (4096, 100_000)
    assert PixelLimits.parse({"max_pixels": 4096}).between(8192, 8388608) == (4096, 4096)


async def test_unusable_frames(encoder: ImageEncoder) -> None:
    with pytest.raises(MediaError, match="no frames"):
        await encoder.encode_frames(np.zeros((0, 8, 8, 3), np.uint8), DIGEST)
    with pytest.raises(MediaError, match="aspect ratio"):
        await encoder.encode_frames(np.zeros((2, 8, 1700, 3), np.uint8), DIGEST)
    frames = np.zeros((2, 8, 8, 3), np.uint8)
    with pytest.raises(MediaError, match="total_max_pixels must be at most"):
        await encoder.encode_frames(frames, DIGEST, {"total_max_pixels": 10**12})
    with pytest.raises(TypeError, match="uint8"):
        await encoder.encode_frames(np.zeros((2, 8, 8, 3), np.float32), DIGEST)


async def test_a_cancelled_clip_leaves_nothing_behind(encoder: ImageEncoder) -> None:
    frames = np.stack([picture(96, 96, seed) for seed in range(40)])
    task = asyncio.create_task(encoder.encode_frames(frames, DIGEST))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stats = await encoder.stats()
    assert stats["queued_items"] == stats["queued_work"] == 0
    assert (await encoder.encode_image(png(picture(16, 16)), DIGEST)).n_rows == 4


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 400), width=st.integers(1, 400))
def test_counts_follow_from_the_size_alone(runtime: VisionRuntime, height: int, width: int) -> None:
    # case 10: the rows of a picture of any size equal what the size rule says
    try:
        prepared = runtime.prepare_image(png(np.zeros((height, width, 3), np.uint8)), PixelLimits())
    except MediaError:
        assert max(height, width) > 200 * min(height, width)
        return
    assert len(prepared.patches) == prepared.work
    rows = runtime.forward([Prepared(prepared.patches, prepared.grid)])[0]
    assert len(rows) * 4 == prepared.work


def test_options_are_checked() -> None:
    for options, message in (
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"max_batch_items": 0}, "max_batch_items"),
        ({"max_wait_ms": -1.0}, "max_wait_ms"),
        ({"max_batch_patches": 0}, "max_batch_patches"),
        ({"decode_threads": 0}, "decode_threads"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"sink_form": "none"}, "sink_form"),
        ({"cache_bytes": -1}, "cache_bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            ImageEncoderOptions.of(options)
    with pytest.raises(TypeError, match="mapping"):
        ImageEncoderOptions.of(5)  # type: ignore[arg-type]
