"""The size in which the video decoder hands frames on: what the vision tower will want, no more.

Loaded by the decoder's worker processes, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from encoders.vision.config import PixelBudget
from encoders.vision.size import smart_resize


class SizeOf(Protocol):
    """(number of frames, height, width) of a clip -> (height, width) to decode to."""

    def __call__(self, frames: int, height: int, width: int, /) -> tuple[int, int]: ...


def size_rule(model: Mapping[str, Any], limits: Mapping[str, int]) -> SizeOf:
    """The rule of a checkpoint (its config.json), narrowed by the settings' pixel limits."""
    vision = model.get("vision_config") or {}
    patch, merge = int(vision.get("patch_size") or 16), int(vision.get("spatial_merge_size") or 2)
    budget = PixelBudget.from_dict(model.get("processor_config") or {}, patch * merge)
    names = {"min_pixels": "video_min", "max_pixels": "video_max"}
    names["total_max_pixels"] = "video_total_max"
    budget = replace(budget, **{names[name]: value for name, value in limits.items()})
    return partial(frame_size, budget, patch * merge, int(vision.get("temporal_patch_size") or 2))


def frame_size(
    budget: PixelBudget, factor: int, temporal: int, frames: int, height: int, width: int
) -> tuple[int, int]:
    """The tower's own size for frames that it would shrink, the frame's for all others.

    Enlarging is left to the tower: it costs nothing there, and memory here.
    """
    share = budget.frame_max(frames, temporal)
    size = smart_resize(height, width, factor, budget.video_min, share)
    return size if size[0] * size[1] < height * width else (height, width)
