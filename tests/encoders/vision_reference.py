"""The vision tower written plainly: one item, one frame at a time, explicit masks.

Independent of encoders/vision: it reads the tensors by name and follows mimo-v2.md 4.1 to 4.3.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
STD = np.array([0.26862954, 0.26130258, 0.27577711])

TINY: dict[str, Any] = {
    "depth": 5,
    "hidden_size": 48,
    "num_heads": 6,
    "num_key_value_heads": 2,
    "qk_channels": 8,
    "intermediate_size": 56,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "in_chans": 3,
    "out_hidden_size": 40,
    "fullatt_block_indexes": [0, 3],
    "vit_window_attn_types": [-1, 0, 1, -1, 1],
    "visual_token_window_size": 5,
    "use_sink": True,
    "hidden_act": "silu",
}


def random_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors under the checkpoint's names (without `visual.`)."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, groups, dim = config["num_heads"], config["num_key_value_heads"], config["qk_channels"]
    patch, merged = config["patch_size"], hidden * config["spatial_merge_size"] ** 2
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (hidden, 3, config["temporal_patch_size"], patch, patch),
        "merger.ln_q.weight": (hidden,),
        "merger.mlp.0.weight": (merged, merged),
        "merger.mlp.2.weight": (config["out_hidden_size"], merged),
    }
    for b in range(config["depth"]):
        shapes |= {
            f"blocks.{b}.norm1.weight": (hidden,),
            f"blocks.{b}.norm2.weight": (hidden,),
            f"blocks.{b}.attn.qkv.weight": ((heads + 2 * groups) * dim, hidden),
            f"blocks.{b}.attn.qkv.bias": ((heads + 2 * groups) * dim,),
            f"blocks.{b}.attn.proj.weight": (hidden, heads * dim),
            f"blocks.{b}.attn.proj.bias": (hidden,),
        }
        for name, shape in (
            ("gate", (inner, hidden)),
            ("up", (inner, hidden)),
            ("down", (hidden, inner)),
        ):
            shapes[f"blocks.{b}.mlp.{name}_proj.weight"] = shape
            shapes[f"blocks.{b}.mlp.{name}_proj.bias"] = shape[:1]
        if config["vit_window_attn_types"][b] != -1:
            shapes[f"blocks.{b}.attn.sinks"] = (heads,)
    tensors = {}
    for name, shape in shapes.items():
        scale = 1.0 if name.endswith("sinks") else 1.5 / math.sqrt(shape[-1])
        tensors[name] = torch.randn(shape, generator=generator) * scale
        if "norm" in name or "ln_q" in name:
            tensors[name] += 1.0
    return tensors


def reference_patches(frames: np.ndarray, patch: int, temporal: int, merge: int) -> torch.Tensor:
    """Resized uint8 frames [T, H, W, 3] to normalised patches, in numpy and in the family's
    order: (t, bh, bw, ih, iw, c, tp, y, x)."""
    if len(frames) % temporal:
        frames = np.concatenate([frames, frames[-1:]])
    pixels = (frames.astype(np.float64) - 255 * MEAN) / (255 * STD)
    pixels = pixels.transpose(0, 3, 1, 2)
    count, channels, height, width = pixels.shape
    t, gh, gw = count // temporal, height // patch, width // patch
    view = pixels.reshape(
        t, temporal, channels, gh // merge, merge, patch, gw // merge, merge, patch
    )
    ordered = view.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return torch.from_numpy(np.ascontiguousarray(ordered).reshape(t * gh * gw, -1)).float()


@dataclass
class ReferenceTower:
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    sink_form: str

    def __call__(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """Rows of one item; `patches` hold all temporal taps."""
        t, h, w = grid
        slices = patches.view(t, h * w, -1)
        return torch.cat([self._slice(slices[i], h, w) for i in range(t)])

    def _slice(self, patches: torch.Tensor, h: int, w: int) -> torch.Tensor:
        tensors, merge = self.tensors, self.config["spatial_merge_size"]
        places = [
            (bh * merge + ih, bw * merge + iw)
            for bh in range(h // merge)
            for bw in range(w // merge)
            for ih in range(merge)
            for iw in range(merge)
        ]
        tokens_across = w // merge
        by_column = sorted(
            range(len(places)),
            key=lambda n: (n // merge**2 % tokens_across, n // merge**2 // tokens_across, n),
        )
        x = patches @ tensors["patch_embed.proj.weight"].flatten(1).T
        for b, kind in enumerate(self.config["vit_window_attn_types"]):
            if kind == 1:
                order = torch.tensor(by_column)
                turned = self._block(b, kind, x[order], [places[n] for n in by_column])
                x = torch.empty_like(turned).index_copy_(0, order, turned)
            else:
                x = self._block(b, kind, x, places)
        x = F.layer_norm(x, x.shape[-1:], tensors["merger.ln_q.weight"], eps=1e-6)
        x = x.reshape(-1, x.shape[-1] * merge**2) @ tensors["merger.mlp.0.weight"].T
        return F.gelu(x) @ tensors["merger.mlp.2.weight"].T

    def _block(
        self, b: int, kind: int, x: torch.Tensor, places: list[tuple[int, int]]
    ) -> torch.Tensor:
        get = {
            name.removeprefix(f"blocks.{b}."): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(f"blocks.{b}.")
        }
        x = x + self._attention(get, kind, _rms(x, get["norm1.weight"]), places)
        y = _rms(x, get["norm2.weight"])
        gate = F.silu(y @ get["mlp.gate_proj.weight"].T + get["mlp.gate_proj.bias"])
        up = y @ get["mlp.up_proj.weight"].T + get["mlp.up_proj.bias"]
        return x + (gate * up) @ get["mlp.down_proj.weight"].T + get["mlp.down_proj.bias"]

    def _attention(
        self,
        get: dict[str, torch.Tensor],
        kind: int,
        x: torch.Tensor,
        places: list[tuple[int, int]],
    ) -> torch.Tensor:
        config = self.config
        heads, groups = config["num_heads"], config["num_key_value_heads"]
        dim, window = config["qk_channels"], config["visual_token_window_size"]
        count = len(x)
        qkv = x @ get["attn.qkv.weight"].T + get["attn.qkv.bias"]
        q, k, v = qkv.split([heads * dim, groups * dim, groups * dim], dim=-1)
        angles = torch.tensor(
            [
                [place * 10000 ** (-2 * j / (dim / 2)) for place in pair for j in range(dim // 4)]
                for pair in places
            ]
        )
        distance = torch.arange(count)[:, None] - torch.arange(count)[None]
        seen = (
            torch.ones(count, count, dtype=torch.bool) if kind == -1 else distance.abs() <= window
        )
        outputs = []
        for head in range(heads):
            group = head // (heads // groups)
            qh = _rotate(q[:, head * dim : (head + 1) * dim], angles)
            kh = _rotate(k[:, group * dim : (group + 1) * dim], angles)
            scores = qh @ kh.T / math.sqrt(dim)
            sink = get.get("attn.sinks")
            if sink is not None and self.sink_form == "first_key_bias":
                scores[:, 0] += sink[head]
            scores = scores.masked_fill(~seen, float("-inf"))
            if sink is not None and self.sink_form == "softmax_column":
                scores = torch.cat([scores, sink[head].expand(count, 1)], dim=1)
            weights = scores.softmax(-1)[:, :count]
            outputs.append(weights @ v[:, group * dim : (group + 1) * dim])
        return torch.cat(outputs, -1) @ get["attn.proj.weight"].T + get["attn.proj.bias"]


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[:, half:], x[:, :half]], dim=-1)
    both = torch.cat([angles, angles], dim=-1)
    return x * both.cos() + turned * both.sin()


def write_checkpoint(
    directory: Path, config: dict[str, Any], processor: dict[str, Any] | None = None
) -> Path:
    """A checkpoint directory with a vision tower alone."""
    both = {"vision_config": config, "processor_config": processor or {}}
    (directory / "config.json").write_text(json.dumps(both))
    tensors = {f"visual.{name}": t for name, t in random_tensors(config).items()}
    save_file(tensors, directory / "model.safetensors")
    return directory
