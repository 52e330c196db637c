"""Causal grouped attention of the two kinds: over everything, and over a window with sinks.

Both take q [B, T, H, D] (already scaled), k [B, T, G, D] and v [B, T, G, V]; query head j reads
key head j // (H/G). They return [B, T, H*V]. Scores are kept in the type of q (bfloat16 under
autocast); the softmax runs in float32 inside its kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

FULL_BLOCK = 256
FULL_MANUAL = 2048  # beyond it the probabilities take more memory than they save time


def full_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Every token sees itself and all before it.

    By blocks of queries, each over the keys up to its end: matrix products and a softmax, several
    times faster on a CPU than the fused kernel's backward. Very long rows use the fused kernel.
    """
    if q.shape[1] > FULL_MANUAL:
        return _fused_attention(q, k, v)
    batch, length, heads, dim = q.shape
    groups, width = k.shape[2], v.shape[-1]
    share = heads // groups
    q = q.view(batch, length, groups, share, dim).permute(0, 2, 3, 1, 4)
    k, v = k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1)
    outputs = []
    for start in range(0, length, FULL_BLOCK):
        stop = min(start + FULL_BLOCK, length)
        block = q[:, :, :, start:stop].reshape(batch * groups, -1, dim)
        scores = torch.bmm(block, k[:, :stop].mT)
        later = torch.arange(stop) > torch.arange(start, stop)[:, None]
        scores = scores + _bias(later, scores.dtype).repeat(share, 1)
        out = torch.bmm(scores.softmax(-1), v[:, :stop])
        outputs.append(out.view(batch, heads, stop - start, width))
    return torch.cat(outputs, dim=2).transpose(1, 2).flatten(2)


def _fused_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    width, share = v.shape[-1], q.shape[2] // k.shape[2]
    v = F.pad(v, (0, k.shape[-1] - width))  # the kernel has one head width
    k, v = (x.repeat_interleave(share, dim=2) for x in (k, v))
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=1.0
    )
    return out[..., :width].transpose(1, 2).flatten(2)


def window_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, window: int
) -> torch.Tensor:
    """Every token sees itself and the ``window`` tokens before it, as SGLang counts.

    T must be a multiple of ``window``: block i of queries looks at the key blocks i-1 and i.
    ``sinks`` [H]: one more logit per head, which takes part in the softmax without a value. It
    enters through one more dimension of q, which meets one more key that holds only that.
    """
    batch, length, heads, dim = q.shape
    groups, width, blocks = k.shape[2], v.shape[-1], length // window
    share = heads // groups
    if length % window:
        raise ValueError(f"{length} tokens do not divide into blocks of {window}")
    sink = sinks.to(q.dtype).view(1, 1, heads, 1).expand(batch, length, heads, 1)
    q = torch.cat([q, sink], dim=-1).view(batch, blocks, window, groups, share, dim + 1)
    q = q.permute(0, 1, 3, 4, 2, 5).reshape(-1, share * window, dim + 1)
    keys = F.pad(_strips(k, window), (0, 1, 0, 1))
    keys[:, -1, -1] = 1.0
    values = F.pad(_strips(v, window), (0, 0, 0, 1))
    scores = torch.bmm(q, keys.mT).view(batch, blocks, groups, share, window, 2 * window + 1)
    scores = scores + _bias(_hidden(blocks, window), scores.dtype)
    weights = scores.softmax(-1).view(-1, share * window, 2 * window + 1)
    out = torch.bmm(weights, values)
    out = out.view(batch, blocks, groups, share, window, width).permute(0, 1, 4, 2, 3, 5)
    return out.reshape(batch, length, heads * width)


def _bias(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Minus infinity where ``hidden``. Adding it needs no pass over the gradient."""
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _strips(x: torch.Tensor, window: int) -> torch.Tensor:
    """[B, T, G, D] to [B * blocks * G, 2 * window, D]: each block behind the one before it."""
    blocks = F.pad(x, (0, 0, 0, 0, window, 0)).unflatten(1, (-1, window))
    strips = torch.cat([blocks[:, :-1], blocks[:, 1:]], dim=2)
    return strips.transpose(2, 3).flatten(0, 2)


def _hidden(blocks: int, window: int) -> torch.Tensor:
    """bool [blocks, 1, 1, window, 2 * window + 1], True where a query must not look."""
    query = torch.arange(window)[:, None]
    key = torch.arange(2 * window)
    hidden = (key < query) | (key > query + window)
    first = (torch.arange(blocks) == 0)[:, None, None] & (key < window)
    return F.pad((hidden | first)[:, None, None], (0, 1), value=False)
