"""Pixels to patches, as tensor operations on whatever device the pixels are on.

Size rule, resize, normalisation and patch order follow mimo-v2.md 4.1 and 4.2 (SGLang 0.5.23). Up
to the tower everything stays 8 bits wide: a quarter of the memory traffic and of what a queue of
prepared images holds.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

# CLIP's means and deviations, not ImageNet's.
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)

Grid = tuple[int, int, int]


def byte_patches(
    frames: torch.Tensor, size: tuple[int, int], *, patch: int, temporal: int, merge: int
) -> tuple[torch.Tensor, Grid]:
    """Patches [t*h*w, features] uint8, not normalised, and grid of uint8 frames [T, H, W, 3].

    `size` = (height, width) from `smart_resize`. T = 1 is a still image: its patches hold one
    copy of the frame (features = 3*patch²), which the tower multiplies with the weights of all
    temporal taps summed, the same result as repeating the frame for less work. Otherwise T is a
    multiple of `temporal` and features = 3*temporal*patch².
    """
    pixels = resize(frames, size).permute(0, 3, 1, 2)
    depth = 1 if frames.shape[0] == 1 else temporal
    grid = (frames.shape[0] // depth, size[0] // patch, size[1] // patch)
    return patchify(pixels, patch=patch, temporal=depth, merge=merge), grid


def to_patches(
    frames: torch.Tensor, size: tuple[int, int], *, patch: int, temporal: int, merge: int
) -> tuple[torch.Tensor, Grid]:
    """`byte_patches`, normalised to float32."""
    patches, grid = byte_patches(frames, size, patch=patch, temporal=temporal, merge=merge)
    return normalise(patches), grid


def resize(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """uint8 [T, h, w, 3] of uint8 [T, H, W, 3]: bilinear without antialias or aligned corners.

    The 8-bit result lies within one level of the exact value: PyTorch's CPU kernel, fifteen times
    as fast as the one for floats, rounds after each of its two passes; other devices round once.
    """
    if tuple(frames.shape[1:3]) == size:
        return frames
    pixels = frames.permute(0, 3, 1, 2)
    if pixels.device.type != "cpu":
        pixels = pixels.to(torch.float32)
    resized = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
    if resized.dtype != torch.uint8:
        resized = resized.round_().clamp_(0, 255).to(torch.uint8)
    return resized.permute(0, 2, 3, 1)


def normalise(patches: torch.Tensor) -> torch.Tensor:
    """(x - 255*mean) / (255*std) per channel, float32, of patches [N, features] uint8."""
    factor, offset = _constants(str(patches.device))
    values = patches.to(torch.float32).view(patches.shape[0], 3, -1)
    return torch.addcmul(offset, values, factor, out=values).view(patches.shape)


def patchify(pixels: torch.Tensor, *, patch: int, temporal: int, merge: int) -> torch.Tensor:
    """[T, C, H, W] to [T/temporal * H/patch * W/patch, C*temporal*patch²].

    Rows go frame group by frame group, then merged token by merged token (row-major), then the
    merge² patches of that token; features go channel, temporal tap, y, x.
    """
    frames, channels, height, width = pixels.shape
    t, rows, columns = frames // temporal, height // patch // merge, width // patch // merge
    view = pixels.reshape(t, temporal, channels, rows, merge, patch, columns, merge, patch)
    ordered = view.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(t * rows * columns * merge**2, channels * temporal * patch**2)


@lru_cache(maxsize=16)
def _constants(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Factor and offset [1, 3, 1]: x * factor + offset is the normalised value of a byte x."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (MEAN, STD))
    factor, offset = 1 / (255 * std), -mean / std
    both = (values.float().view(1, 3, 1).to(device) for values in (factor, offset))
    return next(both), next(both)
