"""Attention arithmetic for the two kinds of layers, on packed or padded tensors.

Everything goes through PyTorch's fused CPU kernel, which also returns each row's log-sum-exp.
That makes two things cheap: parts of a key range can be computed apart and merged, and an
attention sink (an extra key with logit ``s`` and no value) is one factor per row,
``sigmoid(lse - s)``.

Shapes: H query heads, G key/value heads (H a multiple of G), D query/key width, V value width
(V <= D), ``window`` = number of keys visible to the left of a query, itself not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True)
class Part:
    """Attention over one key range: ``out`` [B, H, n, V] and ``lse`` [B, H, n] (float32)."""

    out: torch.Tensor
    lse: torch.Tensor


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> Part:
    """q [B, H, n, D], k [B, G, m, D], v [B, G, m, V]; ``mask`` additive, broadcast to
    [B, H, n, m]. ``causal`` aligns the first query with the first key."""
    width = v.shape[-1]
    # The kernel wants one width for queries, keys and values.
    v = F.pad(v, (0, q.shape[-1] - width))
    out, lse = _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return Part(out[..., :width], lse)


def attend_grouped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor
) -> Part:
    """``attend`` for few rows, reading each key once: the query heads that share a key/value
    head become rows. ``mask`` [B, 1, (H / G) * n, m], see ``grouped_mask``."""
    batch, heads, rows, width = q.shape
    part = attend(q.reshape(batch, k.shape[1], -1, width), k, v, scale, mask=mask)
    return Part(part.out.reshape(batch, heads, rows, -1), part.lse.reshape(batch, heads, rows))


def grouped_mask(allowed: torch.Tensor, sharing: int, dtype: torch.dtype) -> torch.Tensor:
    """Boolean [B, 1, n, m] -> additive [B, 1, sharing * n, m]; ``sharing`` = H / G."""
    return additive(allowed, dtype).repeat(1, 1, sharing, 1)


def merge(a: Part, b: Part) -> Part:
    """The attention over the union of two disjoint key ranges."""
    lse = torch.logaddexp(a.lse, b.lse)
    weight_a = (a.lse - lse).exp().unsqueeze(-1).to(a.out.dtype)
    weight_b = (b.lse - lse).exp().unsqueeze(-1).to(b.out.dtype)
    return Part(a.out * weight_a + b.out * weight_b, lse)


def apply_sinks(part: Part, sinks: torch.Tensor | None) -> torch.Tensor:
    """``out`` with one sink logit per query head, ``sinks`` [H] or None."""
    if sinks is None:
        return part.out
    kept = torch.sigmoid(part.lse - sinks.float().view(1, -1, 1))
    return part.out * kept.unsqueeze(-1).to(part.out.dtype)


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A boolean mask as the additive one the kernel takes."""
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, float("-inf"))


def prefill_full(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    prefix: tuple[torch.Tensor, torch.Tensor] | None,
) -> Part:
    """Causal attention of one request's new rows over a cached prefix and themselves.

    q [n, H, D], k [n, G, D], v [n, G, V]; ``prefix`` = cached (k [p, G, D], v [p, G, V]).
    Returns a Part with B = 1.
    """
    qh = q.transpose(0, 1).unsqueeze(0)
    own = attend(qh, _heads(k), _heads(v), scale, causal=True)
    if prefix is None:
        return own
    return merge(attend(qh, _heads(prefix[0]), _heads(prefix[1]), scale), own)


def prefill_window(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int,
    tail: tuple[torch.Tensor, torch.Tensor] | None,
) -> Part:
    """Sliding-window attention of one request's new rows in O(n * window).

    q [n, H, D], k [n, G, D], v [n, G, V]; ``tail`` = the cached keys and values of the last
    min(prefix, window) positions before the new rows. Queries go in blocks of ``window``
    rows: block i sees the key blocks i - 1 and i and nothing else. Returns a Part with B = 1.
    """
    n = q.shape[0]
    blocks = -(-n // window)
    have = 0 if tail is None else tail[0].shape[0]
    pad_front, pad_back = window - have, blocks * window - n
    keys = _windows(k if tail is None else torch.cat((tail[0], k)), pad_front, pad_back, window)
    values = _windows(v if tail is None else torch.cat((tail[1], v)), pad_front, pad_back, window)
    queries = F.pad(q, (0, 0, 0, 0, 0, pad_back)).view(blocks, window, *q.shape[1:])

    row = torch.arange(window).unsqueeze(1)
    col = torch.arange(2 * window).unsqueeze(0)
    allowed = ((col >= row) & (col <= row + window)).expand(blocks, 1, window, 2 * window)
    if pad_front:
        allowed = allowed.clone()
        allowed[0, 0, :, :pad_front] = False
    part = attend(queries.transpose(1, 2), keys, values, scale, mask=additive(allowed, q.dtype))
    heads = q.shape[1]
    out = part.out.transpose(1, 2).reshape(blocks * window, heads, -1)[:n]
    lse = part.lse.transpose(1, 2).reshape(blocks * window, heads)[:n]
    return Part(out.transpose(0, 1).unsqueeze(0), lse.transpose(0, 1).unsqueeze(0))


def _heads(x: torch.Tensor) -> torch.Tensor:
    """[m, G, D] -> [1, G, m, D]."""
    return x.transpose(0, 1).unsqueeze(0)


def _windows(x: torch.Tensor, front: int, back: int, window: int) -> torch.Tensor:
    """[m, G, D] -> overlapping key blocks [blocks, G, 2 * window, D]."""
    padded = F.pad(x, (0, 0, 0, 0, front, back))
    return padded.unfold(0, 2 * window, window).transpose(2, 3)
