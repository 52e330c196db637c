"""Canvas sizes, backgrounds and the wear (noise, JPEG) that all pictures share."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
from PIL import Image

from encoders.vision.size import smart_resize
from tools.pocket.data.sample import Split, Stream

FACTOR, MIN_PIXELS, MAX_PIXELS = 32, 8_192, 8_388_608
RGB = tuple[int, int, int]

KINDS: dict[Split, tuple[str, ...]] = {
    "train": (
        *("plain", "plain", "plain", "vertical", "horizontal", "blobs", "stripes"),
        *("rings", "waves", "dots", "boxes"),
    ),
    "heldout": ("plain", "diagonal", "checks", "plain"),
}


@lru_cache(maxsize=65536)
def resized(height: int, width: int) -> tuple[int, int]:
    """(height, width) after the family's resize of a still picture or a frame."""
    return smart_resize(height, width, FACTOR, MIN_PIXELS, MAX_PIXELS)


def canvas_size(stream: Stream, low: int, high: int, shortest: int = 96) -> tuple[int, int]:
    """(height, width), each ``low``..``high`` pixels (one in twenty: twice that), whose resized
    sides are all at least ``shortest``; aspect ratios up to 1:3, small canvases more often."""
    rng = stream.rng
    grow = 2 if rng.random() < 0.05 else 1
    while True:
        side = low * (high / low) ** rng.random() * grow
        aspect = 3.0 ** rng.uniform(-1, 1) if rng.random() < 0.7 else 1.0
        height, width = round(side / aspect**0.5), round(side * aspect**0.5)
        if low <= min(height, width) and max(height, width) <= high * grow:
            if rng.random() < 0.3:
                height, width = (max(low, s // 32 * 32) for s in (height, width))
            if min(resized(height, width)) >= shortest:
                return height, width


def distance(a: RGB, b: RGB) -> float:
    return float(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5)


def background_colour(stream: Stream, avoid: list[RGB], gap: float = 95.0) -> RGB:
    """A grey or a pale or dark tint that differs from all of ``avoid``."""
    rng = stream.rng
    best, best_gap = (128, 128, 128), -1.0
    for _ in range(24):
        grey = rng.choice((rng.randint(205, 255), rng.randint(0, 60), rng.randint(80, 185)))
        tint = 12 if 80 <= grey <= 185 else 40
        r, g, b = (min(255, max(0, grey + rng.randint(-tint, tint))) for _ in range(3))
        nearest = min((distance((r, g, b), colour) for colour in avoid), default=999.0)
        if nearest >= gap:
            return r, g, b
        if nearest > best_gap:
            best, best_gap = (r, g, b), nearest
    return best


def background(stream: Stream, height: int, width: int, base: RGB) -> Image.Image:
    """A picture of ``base`` with a pattern of the split's kinds, at most 25 levels away from it."""
    rng = stream.rng
    kind = rng.choice(KINDS[stream.split])
    if kind == "plain":
        return Image.new("RGB", (width, height), base)
    strength = rng.uniform(8, 25)
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    x = np.linspace(-1, 1, width, dtype=np.float32)[None, :]
    pattern: np.ndarray
    if kind == "vertical":
        pattern = np.broadcast_to(y, (height, width))
    elif kind == "horizontal":
        pattern = np.broadcast_to(x, (height, width))
    elif kind == "diagonal":
        pattern = (x + y * rng.choice((-1, 1))) / 2
    elif kind == "checks":
        step = rng.randint(6, 20)
        cells = np.arange(height)[:, None] // step + np.arange(width)[None, :] // step
        pattern = (cells % 2 * 2 - 1).astype(np.float32) * 0.6
    elif kind == "stripes":
        period = rng.uniform(6, 30)
        line = np.arange(width)[None, :] if rng.random() < 0.5 else np.arange(height)[:, None]
        wave = np.sin(line * (2 * np.pi / period)).astype(np.float32)
        pattern = np.broadcast_to(wave * 0.6, (height, width))
    elif kind == "rings":
        far = np.hypot(y - rng.uniform(-1, 1), x - rng.uniform(-1, 1))
        pattern = np.sin(far * rng.uniform(2, 25)) * 0.6
    elif kind == "waves":
        waves = [np.sin(y * rng.uniform(-20, 20) + x * rng.uniform(-20, 20)) for _ in range(2)]
        pattern = np.mean(waves, axis=0) * 0.7
    elif kind == "dots":
        step = rng.randint(8, 24)
        down, right = (np.arange(n) % step / step - 0.5 for n in (height, width))
        pattern = np.where(np.hypot(down[:, None], right) < rng.uniform(0.15, 0.35), 0.6, -0.6)
    elif kind == "boxes":
        pattern = np.full((height, width), -0.3)
        for _ in range(rng.randint(2, 8)):
            top, left = rng.randrange(height), rng.randrange(width)
            box = slice(top, top + rng.randint(8, 64)), slice(left, left + rng.randint(8, 64))
            pattern[box] = rng.uniform(-0.7, 0.7)
    else:
        coarse = stream.noise.uniform(-1, 1, (4, 4)).astype(np.float32)
        pattern = np.asarray(
            Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        )
    values = np.asarray(base, np.float32) + pattern[:, :, None] * strength
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


# Drawing normal numbers anew for each picture would cost more than drawing the picture.
_GRAIN = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)


def grainy(pixels: np.ndarray, sigma: float, start: int) -> np.ndarray:
    grain = np.take(_GRAIN, np.arange(start, start + pixels.size), mode="wrap")
    grain = grain.reshape(pixels.shape) * sigma
    grain += pixels
    return np.clip(grain, 0, 255, out=grain).astype(np.uint8)


def worn(stream: Stream, image: Image.Image, noise: float = 0.5, jpeg: float = 0.35) -> np.ndarray:
    """Pixels uint8 [H, W, 3] of the picture after some noise and a JPEG round trip, by chance."""
    rng = stream.rng
    pixels = np.asarray(image)
    if rng.random() < noise:
        sigma = rng.uniform(2, 14)
        pixels = grainy(pixels, sigma, rng.randrange(_GRAIN.size // 2))
    return jpeg_frames(stream, [pixels])[0] if rng.random() < jpeg else pixels


def jpeg_frames(stream: Stream, frames: list[np.ndarray]) -> list[np.ndarray]:
    """The frames after a JPEG round trip at one random quality."""
    quality, found = stream.rng.randint(55, 95), []
    for frame in frames:
        buffer = io.BytesIO()
        Image.fromarray(frame).save(buffer, "JPEG", quality=quality)
        found.append(np.asarray(Image.open(buffer).convert("RGB")))
    return found
