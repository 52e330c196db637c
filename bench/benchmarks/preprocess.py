"""Encoded photo to normalised patches: our path against Pillow and numpy, per image size.

The other side is transformers' `Qwen2VLImageProcessorPil` with the checkpoint's sizes (Pillow
decode and bicubic resize, numpy for the rest), which is what a checkpoint of this family names as
its processor. Each side has two images in flight in two threads; single images alternate sides, and
so do rounds. Both use the checkpoint's own pixel limits, and once more the settings' narrower ones.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from PIL import Image

from app.settings import checkpoint_directory, config_path, load_settings
from bench.encoders import jpeg
from bench.result import Bar, Figure, Result
from encoders.options import ImageEncoderOptions
from encoders.vision.preprocess import MEAN, STD, normalise
from encoders.vision.runtime import PixelLimits, VisionRuntime

THREADS = 2
# Height, width; bars from full HD on.
SIZES = {"480p": (480, 640), "1080p": (1080, 1920), "4k": (2160, 3840), "12mp": (3000, 4000)}
HELD = ("1080p", "4k", "12mp")

Prepare = Callable[[bytes], Any]


def run(quick: bool) -> Result:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a replica, whose parallelism is its worker threads
    try:
        return _run(2 if quick else 7)
    finally:
        torch.set_num_threads(threads)


def _run(rounds: int) -> Result:
    settings = load_settings(config_path(None))
    runtime = VisionRuntime(
        str(checkpoint_directory(settings)),
        ImageEncoderOptions.of(settings.images.model_dump()),
    )
    result = Result({"threads": THREADS, "rounds": rounds, "sizes": SIZES})
    own = runtime.budget.image_max
    limits = {"": own, "_narrow": min(settings.images.resize_max_pixels or own, own)}
    with ThreadPoolExecutor(THREADS) as pool:
        for name, (height, width) in SIZES.items():
            photos = [jpeg(height, width, seed) for seed in range(THREADS)]
            for suffix, most in limits.items():
                sides = {"ours": _ours(runtime, most), "pillow": _pillow(runtime, most)}
                readings = _compare(pool, sides, photos, rounds)
                for side, (single, per_second) in readings.items():
                    result.figures[f"{name}{suffix}_{side}_ms"] = Figure.of(single)
                    result.figures[f"{name}{suffix}_{side}_per_s"] = Figure.of(per_second)
                if name in HELD:
                    ours, theirs = (statistics.median(readings[s][1]) for s in ("ours", "pillow"))
                    result.bars[f"{name}{suffix}"] = Bar(ours / theirs, at_least=2.0)
    return result


def _ours(runtime: VisionRuntime, most: int) -> Prepare:
    """Float patches, although a replica normalises in its forward pass: both sides do all."""
    limits = PixelLimits(max_pixels=most)

    def prepare(data: bytes) -> torch.Tensor:
        with torch.inference_mode():
            return normalise(runtime.prepare_image(data, limits).patches)

    return prepare


def _pillow(runtime: VisionRuntime, most: int) -> Prepare:
    from transformers import Qwen2VLImageProcessorPil

    config = runtime.config
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": runtime.budget.image_min, "longest_edge": most},
        patch_size=config.patch_size,
        merge_size=config.spatial_merge_size,
        temporal_patch_size=config.temporal_patch_size,
        image_mean=list(MEAN),
        image_std=list(STD),
    )

    def prepare(data: bytes) -> Any:
        with Image.open(io.BytesIO(data)) as image:
            return processor(images=[image.convert("RGB")], return_tensors="np")["pixel_values"]

    return prepare


def _compare(
    pool: ThreadPoolExecutor, sides: dict[str, Prepare], photos: list[bytes], rounds: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Per side: milliseconds of one image alone, and images per second with all threads busy."""
    readings: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in sides}
    for index in range(-1, rounds):
        for name, prepare in sides.items():
            start = time.perf_counter()
            prepare(photos[0])
            alone = time.perf_counter()
            list(pool.map(prepare, photos * 2))
            together = time.perf_counter()
            if index >= 0:
                readings[name][0].append((alone - start) * 1e3)
                readings[name][1].append(2 * len(photos) / (together - alone))
    return readings
