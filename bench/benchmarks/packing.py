"""Images per second of the vision tower: batches packed end to end against padded to the largest.

Image sizes and their mix are those of ServeGen's multimodal trace; each round draws its own images.
Both sides run the same tower on the same images in the same batches, cut in order of arrival at the
encoder's own limits (the defaults of `ImageEncoderOptions`), which hold several pictures. Batches
alternate between the sides; the unfinished one at the end of a round is left out. The padded side
is spared the masks it would need: its images are extended to the largest one's patches and attended
to as a whole.

What there is to gain depends on the batches. Where most pictures fill one by themselves, as with
the small passes of a CPU, or where a batch holds one size class only, there is little to pad: the
figures count that at every deployment's limits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from app.settings import Settings, checkpoint_directory, config_path, load_settings
from bench.image_sizes import SOURCE, draw_grids, mix_folder, token_mix
from bench.packing import Limits, cut, cut_by_class, padding, size
from bench.result import Bar, Figure, Result
from encoders.options import ImageEncoderOptions
from encoders.vision.load import VisionModel, load_vision_model
from encoders.vision.packing import Grid

GPU = Path(__file__).parents[2] / "configs/mimo-v2.5-gpu.yaml"
SIDES = ("packed", "padded")
# Images of the counts, which take no pass.
COUNTED = 4096


def run(quick: bool) -> Result:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a replica
    try:
        return _run(*((24, 1) if quick else (48, 3)))
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
def _run(images: int, rounds: int) -> Result:
    settings = load_settings(config_path(None))
    model = load_vision_model(
        checkpoint_directory(settings),
        device=settings.images.device,
        dtype=getattr(torch, settings.images.dtype),
    )
    draw = partial(draw_grids, token_mix(mix_folder()), merge=model.config.spatial_merge_size)
    limits = Limits.of(ImageEncoderOptions())
    time_pass = _timer(model)
    per_second: dict[str, list[float]] = {side: [] for side in SIDES}
    time_pass(draw(2, seed=rounds))
    for seed in range(rounds):
        batches = cut(draw(images, seed=seed), limits)[:-1]
        seconds = dict.fromkeys(SIDES, 0.0)
        for batch in batches:
            seconds["packed"] += time_pass(batch)
            seconds["padded"] += time_pass([max(batch, key=size)] * len(batch))
        for side, total in seconds.items():
            per_second[side].append(sum(map(len, batches)) / total)
    pairs = zip(per_second["packed"], per_second["padded"], strict=True)
    gains = [packed / padded for packed, padded in pairs]
    counted = draw(COUNTED, seed=0)
    return Result(
        {
            "source": SOURCE,
            "images": images,
            "batch": [limits.items, limits.patches],
            "rounds": rounds,
            "threads": 1,
            "patches_median": statistics.median(map(size, counted)),
            "patches_most": max(map(size, counted)),
        },
        {
            **{f"{side}_images_per_s": Figure.of(rates) for side, rates in per_second.items()},
            "gain": Figure.of(gains),
            **_counts(counted, settings),
        },
        {"packed_over_padded": Bar(statistics.median(gains), at_least=1.5)},
    )


def _timer(model: VisionModel) -> Callable[[Sequence[Grid]], float]:
    """What times one pass over images of these grids."""
    width = model.config.in_channels * model.config.patch_size**2
    patches = partial(torch.randint, 0, 256, dtype=torch.uint8, device=model.tower.device)

    def seconds(batch: Sequence[Grid]) -> float:
        items = [(patches((size(grid), width)), grid) for grid in batch]
        start = time.perf_counter()
        rows = model.tower(items)
        float(rows[-1][0, 0])  # waits for a device that works asynchronously
        return time.perf_counter() - start

    return seconds


def _counts(grids: Sequence[Grid], settings: Settings) -> dict[str, Figure | float]:
    """Images per batch, and patches with padding over those without, at several limits."""
    gpu = load_settings(GPU)
    named = {
        "default": Limits.of(ImageEncoderOptions()),
        "configured": Limits.of(settings.images),
        "gpu": Limits.of(gpu.images),
    }
    found: dict[str, Figure | float] = {}
    for name, limits in named.items():
        for order, make in (("arrival", cut), ("by_class", cut_by_class)):
            batches = make(grids, limits)
            found[f"{name}_{order}_images_per_batch"] = len(grids) / len(batches)
            found[f"{name}_{order}_padded_patches"] = padding(batches)
    return found
