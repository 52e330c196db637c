"""Attention inside the segments of a packed batch: full, or windowed with sinks.

Both forms take q [N, H, D], k and v [N, G, D] (G divides H; query head j uses key head j // (H/G))
and return [N, H, D]. The scale is D^-0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import torch
import torch.nn.functional as F

SinkForm = Literal["softmax_column", "first_key_bias"]


def full_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int]
) -> torch.Tensor:
    """Every patch sees its whole segment. Neighbouring segments of equal length run as one batch
    (the frames of a clip), so nothing is padded.
    """
    out, start = [], 0
    for length, run in groupby(lengths):
        count = len(list(run))
        stop = start + count * length
        q_run, k_run, v_run = (
            x[start:stop].view(count, length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)
        )
        attended = F.scaled_dot_product_attention(q_run, k_run, v_run, enable_gqa=True)
        out.append(attended.transpose(1, 2).reshape(stop - start, *q.shape[1:]))
        start = stop
    return out[0] if len(out) == 1 else torch.cat(out)


def window_bias(mask: torch.Tensor, share: int, column: bool, dtype: torch.dtype) -> torch.Tensor:
    """`Packing.window_mask` as the additive mask [blocks, 1, block*share, keys] of every layer.

    `share` = query heads per key head; `column` adds the key of a sink column.
    """
    if column:
        mask = F.pad(mask, (0, 1), value=True)
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    bias = bias.masked_fill_(~mask, float("-inf"))
    return bias[:, None, :, None].expand(-1, -1, -1, share, -1).flatten(2, 3)


def windowed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    bias: torch.Tensor,
    window: int,
    sinks: torch.Tensor | None = None,
    first: torch.Tensor | None = None,
) -> torch.Tensor:
    """Every patch sees its segment's patches within the window; cost O(N * (block + 2*window)).

    The sequence is cut into blocks of queries; each looks at a strip of keys that reaches one
    window past both ends, under the `bias` of `window_bias`. The query heads that share a key head
    stand in one strip, so keys are not repeated.

    `sinks` [H] enter through one more dimension of q and k, whose product with the scale is the
    sink, so that mask and kernel are the same for all heads. With `first` [N] that dimension is
    set in the first key of every segment ("first_key_bias"). Without, every strip gets one more
    key that holds only that dimension and a zero value ("softmax_column"; `bias` must have its
    column).
    """
    count, heads, dim = q.shape
    groups = k.shape[1]
    share = heads // groups
    blocks, block = bias.shape[0], bias.shape[2] // share
    scale = dim**-0.5
    if sinks is not None:
        q = torch.cat([q, (sinks / scale).view(1, heads, 1).expand(count, heads, 1)], dim=-1)
    width = q.shape[-1]
    if first is not None:
        k = torch.cat([k, first.to(k.dtype).view(count, 1, 1).expand(count, groups, 1)], dim=-1)
    rest = blocks * block - count
    q = F.pad(q, (0, 0, 0, 0, 0, rest)).view(blocks, block, groups, share, width)
    q = q.transpose(1, 2).reshape(blocks, groups, block * share, width)
    keys, values = (_strips(x, width, block, window, rest) for x in (k, v))
    if sinks is not None and first is None:
        sink_key = k.new_zeros(width)
        sink_key[-1] = 1.0
        keys = torch.cat([keys, sink_key.expand(blocks, groups, 1, width)], dim=2)
        values = F.pad(values, (0, 0, 0, 1))
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scale)
    out = out[..., :dim].unflatten(2, (block, share)).transpose(1, 2)
    return out.reshape(blocks * block, heads, dim)[:count]


def _strips(x: torch.Tensor, width: int, block: int, window: int, rest: int) -> torch.Tensor:
    """[N, G, D] to overlapping strips [blocks, G, block + 2*window, width], zeros outside."""
    padded = F.pad(x, (0, width - x.shape[-1], 0, 0, window, window + rest))
    return padded.unfold(0, block + 2 * window, block).transpose(2, 3)
