"""Images per second of the vision tower: batches packed end to end against padded to the largest.

Image sizes and their mix are those of ServeGen's multimodal trace. Both sides run the same tower on
the same images in the same batches, cut in order of arrival. The padded side is spared the masks it
would need: its images are extended to the largest one's patches and attended to as a whole.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial

import torch

from app.settings import checkpoint_directory, config_path, load_settings
from bench.image_sizes import SOURCE, draw_grids, mix_folder, token_mix
from bench.result import Bar, Figure, Result
from encoders.vision.load import load_vision_model
from encoders.vision.packing import Grid

Item = tuple[torch.Tensor, Grid]


@torch.inference_mode()
def run(quick: bool) -> Result:
    settings = load_settings(config_path(None))
    model = load_vision_model(
        checkpoint_directory(settings),
        device=settings.images.device,
        dtype=getattr(torch, settings.images.dtype),
    )
    images, rounds = (16, 2) if quick else (48, 3)
    grids = draw_grids(token_mix(mix_folder()), images, model.config.spatial_merge_size, seed=0)
    limits = settings.images.max_batch_items, settings.images.max_batch_patches
    batches = cut(grids, *limits)
    width = model.config.in_channels * model.config.patch_size**2
    patches = partial(torch.randint, 0, 256, dtype=torch.uint8, device=settings.images.device)
    packed = [[(patches((size(g), width)), g) for g in batch] for batch in batches]
    padded = [
        [(patches((size(largest), width)), largest) for _ in batch]
        for batch in batches
        for largest in [max(batch, key=size)]
    ]
    seconds: dict[str, list[float]] = {"packed": [], "padded": []}
    for index in range(-1, rounds):
        for name, side in (("packed", packed), ("padded", padded)):
            start = time.perf_counter()
            for items in side:
                rows = model.tower(items)
            float(rows[-1][0, 0])  # waits for a device that works asynchronously
            if index >= 0:
                seconds[name].append(time.perf_counter() - start)
    work = {
        name: sum(size(g) for items in side for _, g in items)
        for name, side in (("packed", packed), ("padded", padded))
    }
    gains = [b / a for a, b in zip(seconds["packed"], seconds["padded"], strict=True)]
    return Result(
        {
            "source": SOURCE,
            "images": images,
            "batches": len(batches),
            "rounds": rounds,
            "threads": torch.get_num_threads(),
            "patches_median": statistics.median(map(size, grids)),
            "patches_most": max(map(size, grids)),
        },
        {
            **{f"{k}_images_per_s": Figure.of([images / s for s in v]) for k, v in seconds.items()},
            "gain": Figure.of(gains),
            "padding_share_of_patches": 1 - work["packed"] / work["padded"],
        },
        {"packed_over_padded": Bar(statistics.median(gains), at_least=1.5)},
    )


def size(grid: Grid) -> int:
    """Patches."""
    t, h, w = grid
    return t * h * w


def cut(grids: Sequence[Grid], max_items: int, max_patches: int) -> list[list[Grid]]:
    """Batches in order of arrival, as full as both limits allow without padding."""
    batches: list[list[Grid]] = [[]]
    for grid in grids:
        full = sum(map(size, batches[-1])) + size(grid) > max_patches
        if batches[-1] and (full or len(batches[-1]) == max_items):
            batches.append([])
        batches[-1].append(grid)
    return batches
