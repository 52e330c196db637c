"""Pre-processing against a plain Pillow and numpy path, within one level of 8 bits."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from vision_reference import MEAN, STD, TINY, reference_patches, write_checkpoint

from encoders.options import ImageEncoderOptions
from encoders.vision.preprocess import byte_patches, normalise, resize
from encoders.vision.runtime import PixelLimits, VisionRuntime
from encoders.vision.size import smart_resize

# One level of 8 bits, and what float32 loses.
LEVEL = 1.001


def bilinear(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """float64 [h, w, 3] of [H, W, 3]: two taps per axis, half-pixel centres, no antialias."""
    resized = pixels.astype(np.float64)
    for axis, target in enumerate(size):
        source = resized.shape[axis]
        place = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, None)
        low = place.astype(int)
        high = np.minimum(low + 1, source - 1)
        weight = (place - low).reshape([-1 if axis == a else 1 for a in range(3)])
        resized = resized.take(low, axis) * (1 - weight) + resized.take(high, axis) * weight
    return resized


sides = st.one_of(st.integers(1, 12), st.integers(1, 300))


@settings(max_examples=80, deadline=None)
@given(source=st.tuples(sides, sides), target=st.tuples(sides, sides), seed=st.integers(0, 99))
def test_resize_is_within_one_level(
    source: tuple[int, int], target: tuple[int, int], seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (2, *source, 3), dtype=np.uint8)
    found = resize(torch.from_numpy(pixels), target)
    assert found.dtype == torch.uint8
    for frame, resized in zip(pixels, found.numpy(), strict=True):
        assert np.abs(bilinear(frame, target) - resized).max() <= LEVEL


def test_the_form_for_other_devices_is_within_one_level_too() -> None:
    # The float kernel that accelerators use, on the one device there is.
    class Elsewhere(torch.Tensor):
        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("meta")

    pixels = np.random.default_rng(3).integers(0, 256, (1, 45, 77, 3), dtype=np.uint8)
    found = resize(torch.from_numpy(pixels).as_subclass(Elsewhere), (96, 64))
    assert found.dtype == torch.uint8
    exact = bilinear(pixels[0], (96, 64))
    assert np.abs(exact - found.numpy()[0]).max() <= 0.5 + 1e-3


def test_normalise_is_exact() -> None:
    frames = torch.arange(256, dtype=torch.uint8).repeat(3 * 48).view(1, 96, 128, 3)
    raw, grid = byte_patches(frames, (96, 128), patch=16, temporal=2, merge=2)
    assert grid == (1, 6, 8)
    torch.testing.assert_close(
        normalise(raw), reference_patches(frames.numpy(), 16, 1, 2), atol=1e-6, rtol=1e-6
    )


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> VisionRuntime:
    directory: Path = tmp_path_factory.mktemp("vision")
    small = {"image_max_pixels": 64 * 256, "video_max_pixels": 64 * 256}
    return VisionRuntime(str(write_checkpoint(directory, TINY, small)), ImageEncoderOptions())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("height", "width"), [(300, 500), (90, 64), (17, 23), (128, 128), (9, 3)])
def test_the_whole_path(
    runtime: VisionRuntime, kind: str, mode: str, height: int, width: int
) -> None:
    """Decode, orientation, colour, size, resize, normalise, patchify; turned by EXIF."""
    rng = np.random.default_rng(height)
    noise = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)
    tag = Image.Exif()
    tag[0x0112] = 6
    buffer = io.BytesIO()
    noise.save(buffer, kind, exif=tag)
    with Image.open(io.BytesIO(buffer.getvalue())) as image:
        upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    size = smart_resize(*upright.shape[:2], 8, runtime.budget.image_min, 64 * 256)
    expected = reference_patches(bilinear(upright, size)[None], 4, 1, 2)
    prepared = runtime.prepare_image(buffer.getvalue(), PixelLimits())
    assert prepared.grid == (1, size[0] // 4, size[1] // 4)
    assert prepared.patches.dtype == torch.uint8
    levels = torch.from_numpy(STD * 255).float().repeat_interleave(16)
    error = (normalise(prepared.patches) - expected).abs() * levels
    assert float(error.max()) <= LEVEL


def test_the_means_are_those_of_the_family() -> None:
    from encoders.vision import preprocess

    assert np.allclose(preprocess.MEAN, MEAN)
    assert np.allclose(preprocess.STD, STD)
