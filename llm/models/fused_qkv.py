"""Reading the stored form of fused query, key and value projections.

A checkpoint stores the rows as a stack of shards, one per key/value head of a full-attention
layer; shard s is [Q_s | K_s | V_s] with an equal, consecutive share of the heads of each kind.
SGLang 0.5.23 puts unquantised shards into its [Q | K | V] parameter as they are whenever its
tensor-parallel size is below the shard count, which is silently wrong; given the three parts
by name it places them right at any size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

_FUSED = re.compile(r"(model\.(mtp\.)?layers\.(\d+)\.self_attn\.)qkv_proj\.weight")
_QUANTISED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8)


def split_fused(
    weights: Iterable[tuple[str, torch.Tensor]], config: Any
) -> Iterator[tuple[str, torch.Tensor]]:
    """The same weights with each unquantised ``qkv_proj`` as ``q_proj``, ``k_proj``, ``v_proj``.

    Quantised projections pass unchanged: SGLang re-orders those with their scales. Raises
    ValueError naming a tensor whose row count does not fit the configuration.
    """
    fused = getattr(config, "attention_projection_layout", None) == "fused_qkv"
    for name, weight in weights:
        match = _FUSED.fullmatch(name) if fused else None
        if match is None or weight.dtype in _QUANTISED:
            yield name, weight
            continue
        window = bool(match[2]) or config.hybrid_layer_pattern[int(match[3])] == 1
        shards = config.num_key_value_heads
        parts = _part_rows(config, window)
        if weight.shape[0] != sum(parts):
            raise ValueError(
                f"{name} has {weight.shape[0]} rows; the configuration asks for {sum(parts)}"
            )
        pieces = [shard.split([rows // shards for rows in parts]) for shard in weight.chunk(shards)]
        for part, of_shards in zip("qkv", zip(*pieces, strict=True), strict=True):
            yield f"{match[1]}{part}_proj.weight", torch.cat(of_shards)


def _part_rows(config: Any, window: bool) -> tuple[int, int, int]:
    """Rows of Q, K and V of a layer."""
    prefix = "swa_" if window else ""
    heads = getattr(config, f"{prefix}num_attention_heads")
    kv_heads = getattr(config, f"{prefix}num_key_value_heads")
    width = getattr(config, f"{prefix}head_dim")
    return heads * width, kv_heads * width, kv_heads * getattr(config, f"{prefix}v_head_dim")
