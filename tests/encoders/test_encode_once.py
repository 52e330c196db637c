"""Cache and single flight at work in both encoder replicas."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from vision_reference import TINY, write_checkpoint

from encoders.audio_encoder import AudioEncoder
from encoders.embedding import Embedding, RowsArray, image_layout
from encoders.encode_once import Encoded, EncodeOnce
from encoders.errors import MediaError
from encoders.image_encoder import ImageEncoder

sys.path.insert(0, str(Path(__file__).parent / "audio"))
import audio_tiny

A, B = "a" * 64, "b" * 64
SMALL = {"image_max_pixels": 64 * 256, "video_max_pixels": 64 * 256}


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("vision"), TINY, SMALL))


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(audio_tiny.write_checkpoint(tmp_path_factory.mktemp("audio")))


def png(value: int = 7, side: int = 32) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def spy(owner: Any, name: str) -> list[Any]:
    """The calls of a method from now on."""
    calls: list[Any] = []
    original: Callable[..., Any] = getattr(owner, name)

    def counted(*args: Any) -> Any:
        calls.append(args)
        return original(*args)

    setattr(owner, name, counted)
    return calls


async def test_ten_equal_images_at_once_are_one_forward_pass(vision: str) -> None:
    # case 68
    encoder = ImageEncoder(vision, {"warm_up": False})
    decodes = spy(encoder._runtime, "prepare_image")
    results = await asyncio.gather(*(encoder.encode_image(png(), A) for _ in range(10)))
    assert len(decodes) == 1
    stats = await encoder.stats()
    assert stats["items"] == stats["batches"] == 1
    assert stats["cache"] is None
    assert all(result.rows is results[0].rows for result in results)
    await encoder.check()
    # Without a cache the next one is encoded again.
    await encoder.encode_image(png(), A)
    assert len(decodes) == 2
    await encoder.close()


async def test_an_image_whose_first_caller_leaves_is_not_decoded_again(vision: str) -> None:
    # case 68
    encoder = ImageEncoder(vision, {"warm_up": False})
    decodes = spy(encoder._runtime, "prepare_image")
    calls = [asyncio.create_task(encoder.encode_image(png(), A)) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(isinstance(result, Embedding) for result in results[1:])
    assert len(decodes) == 1
    await encoder.close()


async def test_a_cancel_storm_leaves_nothing(vision: str) -> None:
    encoder = ImageEncoder(vision, {"warm_up": False, "cache_bytes": 1 << 20})
    calls = [
        asyncio.create_task(encoder.encode_image(png(index % 7), f"{index % 7:064x}"))
        for index in range(100)
    ]
    for index, call in enumerate(calls):
        if not index % 5:
            await asyncio.sleep(0.001)
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await encoder.check()
    stats = await encoder.stats()
    assert stats["queued_items"] == stats["single_flight"]["in_flight"] == 0
    assert (await encoder.encode_image(png(99), A)).n_rows == 16
    await encoder.close()


async def test_a_hit_never_decodes_an_image(vision: str) -> None:
    # case 31
    encoder = ImageEncoder(vision, {"warm_up": False, "cache_bytes": 1 << 20})
    decodes = spy(encoder._runtime, "prepare_image")
    passes = spy(encoder._batcher, "_forward")
    first = await encoder.encode_image(png(), A)
    second = await encoder.encode_image(png(), A)
    assert (len(decodes), len(passes)) == (1, 1)
    assert second is first
    assert not first.rows.data.flags.writeable
    await encoder.encode_image(png(8), B)
    assert len(decodes) == 2
    cache = (await encoder.stats())["cache"]
    assert (cache["hits"], cache["misses"], cache["items"]) == (1, 2, 2)
    assert cache["used_bytes"] > first.rows.data.nbytes
    await encoder.check()
    await encoder.close()


async def test_bad_images_are_not_cached(vision: str) -> None:
    encoder = ImageEncoder(vision, {"warm_up": False, "cache_bytes": 1 << 20})
    for _ in range(2):
        with pytest.raises(MediaError):
            await encoder.encode_image(b"no image", A)
    assert (await encoder.encode_image(png(), A)).n_rows == 16
    await encoder.close()


async def test_a_hit_never_transforms_a_sound(audio: str) -> None:
    # case 31
    encoder = AudioEncoder(audio, {"warm_up": False, "cache_bytes": 1 << 20})
    prepared = spy(encoder._model, "preprocess")
    samples = np.random.default_rng(0).standard_normal((1, 24_000), np.float32) * 0.1
    assert await encoder.find(A) is None
    calls = [encoder.encode_samples(samples, 24_000, A) for _ in range(5)]
    results = await asyncio.gather(*calls)
    assert await encoder.encode_samples(samples, 24_000, A) is results[0]
    assert await encoder.find(A) is results[0]
    assert len(prepared) == 1
    cache = (await encoder.stats())["cache"]
    assert (cache["hits"], cache["misses"]) == (2, 5)
    # A clip's track has rows of its own and no digest.
    assert len(await encoder.encode_track(samples, 24_000)) == results[0].n_rows
    assert len(prepared) == 2
    await encoder.check()
    await encoder.close()


def encoded(digest: str, rows: int, seconds: float = 1.0) -> Encoded:
    array = RowsArray(np.zeros((rows, 256), np.float32), "float32")
    return Encoded(Embedding("image", digest, image_layout(rows), array), seconds)


async def test_rows_are_put_anew_for_every_caller() -> None:
    puts: list[RowsArray] = []

    def put(rows: RowsArray) -> str:
        puts.append(rows)
        return f"reference {len(puts)}"

    once = EncodeOnce(1 << 20, put)

    async def encode() -> Encoded:
        return encoded(A, 3)

    names = [(await once.get(A, encode)).rows for _ in range(3)]
    assert names == ["reference 1", "reference 2", "reference 3"]
    assert puts[0] is puts[2]


async def test_what_is_larger_than_the_cache_is_served() -> None:
    # case 60
    once = EncodeOnce(2048, None)

    async def encode() -> Encoded:
        return encoded(A, 9)

    for _ in range(2):
        assert (await once.get(A, encode)).n_rows == 9
    assert once.report()["cache"]["too_large"] == 2
    once.check()
