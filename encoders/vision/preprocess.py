"""Pixels to patches, as tensor operations on whatever device the pixels are on.

Resize, normalisation and patch order follow mimo-v2.md 4.1 and 4.2 (SGLang 0.5.23).
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

# CLIP's means and deviations, not ImageNet's.
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def to_patches(
    frames: torch.Tensor, size: tuple[int, int], *, patch: int, temporal: int, merge: int
) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Patches [t*h*w, features] float32 and grid (t, h, w) of uint8 frames [T, H, W, 3].

    `size` = (height, width) from `smart_resize`. T = 1 is a still image: its patches hold one
    copy of the frame (features = 3*patch²), which the tower multiplies with the weights of all
    temporal taps summed, the same result as repeating the frame for less work. Otherwise T is a
    multiple of `temporal` and features = 3*temporal*patch².
    """
    pixels = normalise(resize(frames, size))
    depth = 1 if frames.shape[0] == 1 else temporal
    grid = (frames.shape[0] // depth, size[0] // patch, size[1] // patch)
    return patchify(pixels, patch=patch, temporal=depth, merge=merge), grid


def resize(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """float32 [T, 3, h, w] in 0..255, bilinear without antialias or aligned corners.

    Takes uint8 [T, H, W, 3]; the result keeps that channels-last memory order, in which both this
    resize and `patchify` read their input front to back.
    """
    pixels = frames.permute(0, 3, 1, 2).to(torch.float32)
    if tuple(pixels.shape[2:]) == size:
        return pixels
    return F.interpolate(pixels, size=size, mode="bilinear", align_corners=False)


def normalise(pixels: torch.Tensor) -> torch.Tensor:
    """(x - 255*mean) / (255*std) per channel of float32 [T, 3, h, w]; overwrites its input."""
    mean, std = _constants(str(pixels.device))
    return pixels.sub_(mean).div_(std)


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
    mean = torch.tensor(MEAN, device=device).mul(255.0).view(1, 3, 1, 1)
    return mean, torch.tensor(STD, device=device).mul(255.0).view(1, 3, 1, 1)
