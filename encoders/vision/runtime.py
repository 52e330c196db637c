"""The synchronous steps of the image encoder: prepare in worker threads, forward in one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from encoders.arrays import tensor_view
from encoders.device import side_stream
from encoders.embedding import RowsArray
from encoders.errors import MediaError
from encoders.options import ImageEncoderOptions
from encoders.vision.decode import decode_image
from encoders.vision.load import load_vision_model
from encoders.vision.packing import Grid
from encoders.vision.preprocess import byte_patches
from encoders.vision.size import smart_resize

# What "detail": "low" allows at most: 512 x 512, as in OpenAI's API.
LOW_DETAIL_PIXELS = 512 * 512


@dataclass(frozen=True)
class PixelLimits:
    """Pixel limits that a call may ask for; None is the checkpoint's own.

    `sampled_frames`: frames of the whole clip if the call brings only a part of them. `low`: no
    more than `LOW_DETAIL_PIXELS`.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    total_max_pixels: int | None = None
    sampled_frames: int | None = None
    low: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, object] | None) -> PixelLimits:
        """The limits by name; None counts as absent, "detail" may be "low", "high" or "auto".

        Raises `MediaError` for an unknown name and for a value that is no positive whole number.
        """
        given = {name: value for name, value in (options or {}).items() if value is not None}
        detail = given.pop("detail", "auto")
        if detail not in ("low", "high", "auto"):
            raise MediaError("option detail must be low, high or auto")
        known = [field.name for field in fields(cls) if field.name != "low"]
        limits: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise MediaError(f"unknown option {name!r}; known are detail, {', '.join(known)}")
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise MediaError(f"option {name} must be a positive whole number")
            limits[name] = value
        return replace(cls(**limits), low=detail == "low")

    def between(self, low: int, high: int) -> tuple[int, int]:
        """The limits to use where the checkpoint says low..high, whose maximum stands.

        A maximum alone takes a higher minimum down with it.
        """
        most = self.max_pixels or high
        if self.low:
            most = min(most, LOW_DETAIL_PIXELS)
        least = self.min_pixels or min(low, most)
        if max(least, most) > high:
            raise MediaError(f"min_pixels and max_pixels must be at most {high}")
        if least > most:
            raise MediaError(f"min_pixels {least} exceeds max_pixels {most}")
        return least, most


@dataclass(frozen=True)
class Prepared:
    """An image or some pairs of a clip, ready for the tower: uint8 patches on the device, grid."""

    patches: torch.Tensor
    grid: Grid

    @property
    def work(self) -> int:
        """Patches."""
        t, h, w = self.grid
        return t * h * w


@dataclass(frozen=True)
class ClipPlan:
    """How a clip goes through the tower: frame size, its grid, and frame ranges per item."""

    size: tuple[int, int]
    grid: Grid
    chunks: tuple[slice, ...]

    @property
    def work(self) -> int:
        """Patches."""
        t, h, w = self.grid
        return t * h * w


class VisionRuntime:
    """Vision model, device and limits of one replica. Its methods may run in any thread."""

    def __init__(self, checkpoint: str, options: ImageEncoderOptions) -> None:
        self.options = options
        self.device = torch.device(options.device)
        model = load_vision_model(
            checkpoint,
            device=self.device,
            dtype=getattr(torch, options.dtype),
            sink_form=options.sink_form,  # type: ignore[arg-type]
        )
        self.tower, self.config, self.budget = model.tower, model.config, model.budget

    @torch.inference_mode()
    def prepare_image(self, data: bytes, limits: PixelLimits) -> Prepared:
        """Decode and pre-process an encoded image. Raises `MediaError`."""
        low, high = limits.between(self.budget.image_min, self.budget.image_max)
        pixels = decode_image(data, self.options.max_pixels)
        size = smart_resize(pixels.shape[0], pixels.shape[1], self.config.factor, low, high)
        return self._to_patches(pixels[None], size)

    def plan_clip(self, frames: np.ndarray, limits: PixelLimits) -> ClipPlan:
        """The plan of frames uint8 [T, H, W, 3]. Raises `MediaError` for an impossible size."""
        if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8:
            raise TypeError(f"expected uint8 [T, H, W, 3], got {frames.dtype} {frames.shape}")
        count, height, width, _ = frames.shape
        if not count:
            raise MediaError("the clip has no frames")
        config, budget = self.config, self.budget
        if limits.total_max_pixels is not None:
            if limits.total_max_pixels > budget.video_total_max:
                raise MediaError(f"total_max_pixels must be at most {budget.video_total_max}")
            budget = replace(budget, video_total_max=limits.total_max_pixels)
        low, high = limits.between(budget.video_min, budget.video_max)
        share = budget.frame_max(limits.sampled_frames or count, config.temporal_patch_size)
        size = smart_resize(height, width, config.factor, low, max(low, min(high, share)))
        h, w = size[0] // config.patch_size, size[1] // config.patch_size
        temporal = config.temporal_patch_size
        step = max(self.options.max_batch_patches // (h * w), 1) * temporal
        chunks = tuple(slice(at, min(at + step, count)) for at in range(0, count, step))
        return ClipPlan(size, (-(-count // temporal), h, w), chunks)

    @torch.inference_mode()
    def prepare_frames(self, frames: np.ndarray, plan: ClipPlan) -> Prepared:
        """Pre-process a chunk of frames; an incomplete pair repeats its last frame."""
        return self._to_patches(frames, plan.size)

    @torch.inference_mode()
    def forward(self, items: Sequence[Prepared]) -> list[RowsArray]:
        """One pass of the tower: the rows of each item, on the host."""
        rows = self.tower([(item.patches, item.grid) for item in items])
        return [RowsArray.from_tensor(item) for item in rows]

    def warm_up_items(self) -> list[Prepared]:
        """A still of about 200 x 200 pixels and a small clip."""
        side = 7 * self.config.factor
        pair = np.zeros((self.config.temporal_patch_size, side, side, 3), np.uint8)
        plan = self.plan_clip(pair, PixelLimits())
        return [self.prepare_frames(pair[:1], plan), self.prepare_frames(pair, plan)]

    def _to_patches(self, frames: np.ndarray, size: tuple[int, int]) -> Prepared:
        config = self.config
        rest = -len(frames) % config.temporal_patch_size
        if rest and len(frames) > 1:
            frames = np.concatenate([frames, np.repeat(frames[-1:], rest, axis=0)])
        with side_stream(self.device):
            patches, grid = byte_patches(
                tensor_view(frames).to(self.device),
                size,
                patch=config.patch_size,
                temporal=config.temporal_patch_size,
                merge=config.spatial_merge_size,
            )
        return Prepared(patches, grid)
