"""Parts of clips and tracks under digests of their own: equal to the whole, encoded once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from vision_reference import TINY, write_checkpoint

from encoders.audio_encoder import AudioEncoder
from encoders.embedding import Rows, RowsArray
from encoders.image_encoder import ImageEncoder
from encoders.video_layout import compose_parts, compose_video

sys.path.insert(0, str(Path(__file__).parent / "audio"))
from audio_tiny import write_checkpoint as write_audio

RATES = [24_000, 44_100, 8_000]


async def test_parts_of_a_clip(tmp_path: Path) -> None:
    small = {"image_max_pixels": 64 * 256, "video_max_pixels": 64 * 256}
    encoder = ImageEncoder(
        str(write_checkpoint(tmp_path, TINY, small)), {"warm_up": False, "cache_bytes": 1 << 20}
    )
    frames = np.random.default_rng(0).integers(0, 256, (6, 48, 64, 3), np.uint8)
    options = {"sampled_frames": 6}
    whole = await encoder.encode_frames(frames, "0" * 64)
    parts = [
        await encoder.encode_part(frames[cut], f"{n:064x}", options)
        for n, cut in enumerate((slice(0, 2), slice(2, 6)))
    ]
    joined = RowsArray.concat([part.rows for part in parts])
    torch.testing.assert_close(joined.tensor(), whole.rows.tensor(), atol=1e-4, rtol=1e-3)
    assert parts[0].layout == (Rows("video", len(parts[0].rows)),)
    encoded = encoder._batcher.stats.items
    again = await encoder.encode_part(frames[:2], f"{0:064x}", options)
    found = await encoder.find(f"{1:064x}")
    assert encoder._batcher.stats.items == encoded
    assert found is not None
    assert np.array_equal(again.rows.data, parts[0].rows.data)
    assert np.array_equal(found.rows.data, parts[1].rows.data)
    times = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    sound = RowsArray(np.ones((20, joined.data.shape[1]), np.float32), "float32")
    one = compose_video("0" * 64, times, whole.grid, joined, sound)
    cut = [sound.slice(0, 7), sound.slice(7, 20)]
    two = compose_parts("0" * 64, times, [part.rows for part in parts], cut)
    assert one.layout == two.layout
    assert np.array_equal(one.rows.data, two.rows.data)
    with pytest.raises(ValueError, match="do not belong to 4 frames"):
        compose_parts("0" * 64, times[:4], [joined.slice(0, len(joined) - 1)])
    await encoder.close()


@pytest.mark.parametrize("rate", RATES)
async def test_parts_of_a_track(tmp_path: Path, rate: int) -> None:
    """61.7 s in parts of 60 s, a second of sound on either side."""
    encoder = AudioEncoder(str(write_audio(tmp_path)), {"warm_up": False, "cache_bytes": 1 << 20})
    samples = np.random.default_rng(0).normal(0, 0.2, (2, round(61.7 * rate))).astype(np.float32)
    whole = await encoder.encode_track(samples, rate)
    first = await encoder.encode_part(samples[:, : 61 * rate], rate, "0" * 64, 0, 60)
    last = await encoder.encode_part(samples[:, 59 * rate :], rate, "1" * 64, 1, 60)
    assert first.layout == (Rows("audio", 375),)
    joined = RowsArray.concat([first.rows, last.rows])
    assert len(joined) == len(whole)
    torch.testing.assert_close(joined.tensor(), whole.tensor(), atol=1e-4, rtol=1e-3)
    encoded = encoder._batcher.stats.items
    assert len((await encoder.encode_part(samples[:, :1], rate, "1" * 64, 1, 60)).rows) == 11
    assert encoder._batcher.stats.items == encoded
    await encoder.close()
