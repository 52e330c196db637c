"""Attention over packed segments: full (causal or not) per segment, local by blocks.

Both take q, k, v [n, heads, head_dim] of segments laid end to end and return the same shape.
A plan holds what depends on the lengths only; one plan serves all layers of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

import torch
from torch.nn import functional as F

from encoders.audio.config import Span

_MIN_BLOCK = 64


class AttentionPlan(Protocol):
    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor: ...


def attention_plan(lengths: Sequence[int], span: Span, device: torch.device) -> AttentionPlan:
    """The plan for segments of these lengths under `span`.

    A span that reaches over the longest segment limits nothing, so it is computed as full.
    """
    longest = max(lengths)
    left = None if span.left is None or span.left >= longest - 1 else span.left
    right = None if span.right is None or span.right >= longest - 1 else span.right
    if left is None and (right is None or span.right == 0):
        return FullPlan(lengths, causal=span.right == 0)
    return LocalPlan(
        lengths,
        longest if left is None else left,
        longest if right is None else right,
        device,
    )


class FullPlan:
    """Each segment attends to itself. Neighbours of equal length share one call."""

    def __init__(self, lengths: Sequence[int], causal: bool) -> None:
        self.runs = [(length, len(list(same))) for length, same in groupby(lengths)]
        self.causal = causal

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        outputs, start = [], 0
        for length, count in self.runs:
            stop = start + length * count
            segments = (x[start:stop].unflatten(0, (count, length)) for x in (q, k, v))
            queries, keys, values = (x.transpose(1, 2) for x in segments)
            out = F.scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
            start = stop
        return torch.cat(outputs)


class LocalPlan:
    """Queries in blocks, each against the keys in its reach: time and memory O(n * window).

    A block takes `block` queries of one segment and the keys from `left` before its first to
    `right` after its last. Slots past the end of a segment repeat its last query and are dropped;
    keys outside the segment are masked.
    """

    def __init__(self, lengths: Sequence[int], left: int, right: int, device: torch.device) -> None:
        block = min(max(_MIN_BLOCK, left + right), max(lengths))
        sizes = torch.tensor(lengths)
        bases = sizes.cumsum(0) - sizes
        per_segment = (sizes + block - 1) // block
        owner = torch.repeat_interleave(torch.arange(len(lengths)), per_segment)
        first_block = per_segment.cumsum(0) - per_segment
        start = (torch.arange(owner.shape[0]) - first_block[owner]) * block
        size, base = sizes[owner][:, None], bases[owner][:, None]

        slots = start[:, None] + torch.arange(block)
        queries = slots.clamp(max=size - 1)
        keys = start[:, None] - left + torch.arange(block + left + right)
        distance = queries[:, :, None] - keys[:, None, :]
        inside = ((keys >= 0) & (keys < size))[:, None, :]
        mask = inside & (distance <= left) & (distance >= -right)

        self.queries = (base + queries).to(device)
        self.keys = (base + keys.clamp(min=0).minimum(size - 1)).to(device)
        self.mask = mask[:, None].to(device)
        # Segments and blocks are in packed order, so the used slots are the rows in order.
        self.used = (slots < size).flatten().nonzero()[:, 0].to(device)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = F.scaled_dot_product_attention(
            q[self.queries].transpose(1, 2),
            k[self.keys].transpose(1, 2),
            v[self.keys].transpose(1, 2),
            attn_mask=self.mask,
        )
        return out.transpose(1, 2).flatten(0, 1)[self.used]
