"""Encoder replicas of the shipped settings for benchmarks, and inputs that differ in every call."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from app.settings import checkpoint_directory, config_path, load_settings
from encoders.audio_encoder import AudioEncoder
from encoders.image_encoder import ImageEncoder


def image_encoder(**options: Any) -> ImageEncoder:
    """A replica of the configured checkpoint with the settings' options, changed by `options`."""
    settings = load_settings(config_path(None))
    section = settings.images.model_dump()
    return ImageEncoder(str(checkpoint_directory(settings)), {**section, **options})


def audio_encoder(**options: Any) -> AudioEncoder:
    """As `image_encoder`."""
    settings = load_settings(config_path(None))
    section = settings.audio.model_dump()
    return AudioEncoder(str(checkpoint_directory(settings)), {**section, **options})


def jpeg(height: int, width: int, seed: int = 0) -> bytes:
    """A picture with large shapes and some noise, as JPEG of quality 90."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((width, height)), dtype=np.int16)
    noisy = pixels + rng.integers(-8, 9, pixels.shape, dtype=np.int16)
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def sound(seconds: float, rate: int = 24_000, seed: int = 0) -> np.ndarray:
    """Noise, float32 [1, seconds * rate] in -1..1."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-0.5, 0.5, (1, round(seconds * rate))).astype(np.float32)
