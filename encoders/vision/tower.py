"""The vision tower: patches of a packed batch to embedding rows (mimo-v2.md 4.3).

Parameter names equal the checkpoint's (`visual.` + name), so `load_module` fills it and a trainer
can save it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import get_args

import torch
import torch.nn.functional as F
from torch import nn

from encoders.vision.attention import SinkForm, full_attention, window_bias, windowed_attention
from encoders.vision.config import COLUMN, FULL, VisionConfig
from encoders.vision.packing import Grid, Packing, Rotary, pack
from encoders.vision.preprocess import normalise

# Patches that are normalised and embedded at once on a CPU: they stay in its cache.
EMBED_ROWS = 1024
# Queries per block of windowed attention: the fastest of 16..256 on a CPU for windows 16 and 64.
MIN_BLOCK = 32


class VisionTower(nn.Module):
    """Patch embedding, pre-norm blocks with full or windowed attention, merger.

    Public implementations disagree about the sinks, which the checkpoint's training cannot settle
    for us, so `sink_form` is a switch. "softmax_column" (default) lets a sink take part in the
    softmax without a value, as SGLang's kernel does (0.5.23, fa3, the deployment that the
    published scores come from) and as the same family's text layers do. "first_key_bias" adds it
    to the score of each segment's first patch, as Xiaomi's remote code does; take it for parity
    with that code.
    """

    def __init__(self, config: VisionConfig, sink_form: SinkForm = "softmax_column") -> None:
        super().__init__()
        if sink_form not in get_args(SinkForm):
            raise ValueError(f"sink_form must be one of {get_args(SinkForm)}, got {sink_form!r}")
        self.config = config
        self.sink_form = sink_form
        self.patch_embed = PatchEmbed(config)
        blocks = [Block(config, index, sink_form) for index in range(config.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.merger = Merger(config)

    @property
    def device(self) -> torch.device:
        return self.patch_embed.proj.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.patch_embed.proj.weight.dtype

    def forward(self, items: Sequence[tuple[torch.Tensor, Grid]]) -> list[torch.Tensor]:
        """Rows [t*h*w/merge², out_hidden] of each item, in order.

        An item is its patches [t*h*w, features], on the tower's device, and its grid (t, h, w):
        uint8 as `byte_patches` makes them, or normalised in any float type. Items of different
        sizes may be mixed, stills and clips too; the result of one does not depend on the others.
        """
        config = self.config
        grids = [grid for _, grid in items]
        packing = pack(
            grids,
            merge=config.spatial_merge_size,
            head_dim=config.head_dim,
            window=config.window,
            block=max(config.window, MIN_BLOCK),
            device=self.device,
        )
        x = self.patch_embed([patches for patches, _ in items])
        x = self._run_blocks(x, packing)
        rows = self.merger(x)
        return list(rows.split([t * h * w // config.merge_unit for t, h, w in grids]))

    def _run_blocks(self, x: torch.Tensor, packing: Packing) -> torch.Tensor:
        config = self.config
        share = config.num_heads // config.num_key_value_heads
        bias = None
        if set(config.window_attn_types) != {FULL}:
            column = config.use_sink and self.sink_form == "softmax_column"
            bias = window_bias(packing.window_mask, share, column, x.dtype)
        by_column = False
        for kind, block in zip(config.window_attn_types, self.blocks, strict=True):
            # Row order to column order and back, only where the kind of block changes.
            if (kind == COLUMN) != by_column:
                by_column = kind == COLUMN
                x = x[packing.columns if by_column else packing.rows]
            x = block(x, packing, bias)
        return x[packing.rows] if by_column else x


class PatchEmbed(nn.Module):
    """A Conv3d whose kernel is one patch, as a matrix product."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(
            config.in_channels, config.hidden_size, kernel, stride=kernel, bias=False
        )
        self._still: torch.Tensor | None = None
        self._still_of: tuple[torch.Tensor, int] | None = None

    def forward(self, items: Sequence[torch.Tensor]) -> torch.Tensor:
        """Hidden states [sum of patches, hidden] of items of stills' or clips' patches."""
        kernels = self._kernels()
        outputs = []
        for (features, dtype), run in groupby(items, key=lambda item: (item.shape[1], item.dtype)):
            patches = list(run)
            joined = patches[0] if len(patches) == 1 else torch.cat(patches)
            embed = _embed_bytes if dtype == torch.uint8 else _embed
            outputs.append(embed(joined, kernels[features]))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _kernels(self) -> dict[int, torch.Tensor]:
        """Weights [hidden, features] by number of features, for clips and for stills.

        A still image repeats its frame over the temporal taps: summing those taps is the same.
        The sum is kept until the weight changes.
        """
        weight = self.proj.weight
        version = -1 if weight.is_inference() else weight._version
        weight_of, version_of = self._still_of or (None, -1)
        current = weight_of is weight and version_of == version and not weight.requires_grad
        if self._still is None or not current:
            self._still = weight.float().sum(dim=2).to(weight.dtype).flatten(1)
            self._still_of = (weight, version)
        taps = weight.flatten(1)
        return {taps.shape[1]: taps, self._still.shape[1]: self._still}


def _embed(patches: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    return F.linear(patches.to(kernel.dtype), kernel)


def _embed_bytes(patches: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    rows = EMBED_ROWS if patches.device.type == "cpu" else max(patches.shape[0], 1)
    parts = [_embed(normalise(part), kernel) for part in patches.split(rows)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Block(nn.Module):
    def __init__(self, config: VisionConfig, index: int, sink_form: SinkForm) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.attn = Attention(config, index, sink_form)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)

    def forward(self, x: torch.Tensor, packing: Packing, bias: torch.Tensor | None) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), packing, bias)
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    def __init__(self, config: VisionConfig, index: int, sink_form: SinkForm) -> None:
        super().__init__()
        self.heads, self.groups = config.num_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.window = config.window
        self.kind = config.window_attn_types[index]
        width = (self.heads + 2 * self.groups) * self.head_dim
        self.qkv = nn.Linear(config.hidden_size, width)
        self.proj = nn.Linear(self.heads * self.head_dim, config.hidden_size)
        self.first_key_bias = sink_form == "first_key_bias"
        self.sinks: nn.Parameter | None = None
        if config.has_sink(index):
            self.sinks = nn.Parameter(torch.zeros(self.heads))

    def forward(self, x: torch.Tensor, packing: Packing, bias: torch.Tensor | None) -> torch.Tensor:
        heads, groups = self.heads, self.groups
        qkv = self.qkv(x).view(-1, heads + 2 * groups, self.head_dim)
        rotary = packing.column_rotary if self.kind == COLUMN else packing.row_rotary
        qk, v = rotate(qkv[:, : heads + groups], rotary), qkv[:, heads + groups :]
        q, k = qk[:, :heads], qk[:, heads:]
        if self.kind == FULL or bias is None:
            out = full_attention(q, k, v, packing.lengths)
        else:
            first = packing.first if self.first_key_bias and self.sinks is not None else None
            out = windowed_attention(
                q, k, v, bias=bias, window=self.window, sinks=self.sinks, first=first
            )
        return self.proj(out.flatten(1))


def rotate(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Half-rotation in float32 of [N, heads, D]: pairs are (i, i + D/2)."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = rotary.cos, rotary.sin
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class GatedMLP(nn.Module):
    """down(silu(gate x) * up x), with biases."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate)
        self.up_proj = nn.Linear(hidden, intermediate)
        self.down_proj = nn.Linear(intermediate, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Merger(nn.Module):
    """LayerNorm per patch, then an MLP over the merge² patches of each token. No biases."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.hidden_size * config.merge_unit
        self.width = width
        self.ln_q = nn.LayerNorm(config.hidden_size, eps=1e-6, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, width, bias=False),
            nn.GELU(),
            nn.Linear(width, config.out_hidden_size, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.ln_q(x).view(-1, self.width))
