"""Plain forms of the audio path for comparison: one segment at a time, explicit masks, loops."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from encoders.audio.config import Span

Tensors = dict[str, torch.Tensor]


def span_mask(n: int, span: Span) -> torch.Tensor:
    """Boolean [n, n], query rows: which keys a query sees."""
    behind = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    mask = torch.ones(n, n, dtype=torch.bool)
    if span.left is not None:
        mask &= behind <= span.left
    if span.right is not None:
        mask &= behind >= -span.right
    return mask


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Softmax attention of q, k, v [n, heads, dim] under `mask` [n, n]."""
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def rotate_each(x: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding of x [n, heads, dim] by complex multiplication of (i, i + dim / 2)."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=torch.float64) / half
    angles = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * theta**-steps
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angles), angles
    ).unsqueeze(1)
    return torch.cat([turned.real, turned.imag], dim=-1)


def nearest_codes(x: torch.Tensor, codebooks: list[torch.Tensor]) -> torch.Tensor:
    """Residual quantisation of x [n, dim] vector by vector, stage by stage: codes [n, stages]."""
    rows = []
    for vector in x:
        residual, codes = vector.clone(), []
        for codebook in codebooks:
            distances = [(residual - row).norm().item() for row in codebook]
            best = min(range(len(distances)), key=distances.__getitem__)
            residual = residual - codebook[best]
            codes.append(best)
        rows.append(codes)
    return torch.tensor(rows)


def segment_latents(
    mel: torch.Tensor, weights: Tensors, config: dict[str, Any], spans: list[Span]
) -> torch.Tensor:
    """Latents [codes, d] of one segment [T, mels] in float64, by ordinary padded convolutions."""
    w = {name.removeprefix("encoder."): tensor.double() for name, tensor in weights.items()}

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    x = mel.double().T[None]
    x = F.gelu(F.conv1d(x, w["conv1.weight"], w["conv1.bias"], padding=1))
    stride = config["stride_size"]
    x = F.gelu(F.conv1d(x, w["conv2.weight"], w["conv2.bias"], stride=stride, padding=1))[0].T
    heads, early = config["encoder_attention_heads"], torch.zeros(())
    for layer, span in enumerate(spans):
        at = f"layers.{layer}"
        h = norm(f"{at}.self_attn_layer_norm", x)
        q, k, v = (
            linear(f"{at}.self_attn.{part}_proj", h).view(len(h), heads, -1) for part in "qkv"
        )
        theta = config["rope_theta"]
        mask = span_mask(len(h), span)
        h = masked_attention(rotate_each(q, theta), rotate_each(k, theta), v, mask)
        x = x + linear(f"{at}.self_attn.out_proj", h.flatten(1))
        h = norm(f"{at}.final_layer_norm", x)
        x = x + linear(f"{at}.fc2", F.gelu(linear(f"{at}.fc1", h)))
        if layer == config["encoder_skip_layer_id"] - 1:
            early = x
    x = norm("layer_norm", x + early)
    pooler = config["avg_pooler"]
    x = F.pad(x, (0, 0, 0, -len(x) % pooler)).T[None]
    x = F.gelu(F.conv1d(x, w["down_sample_layer.0.weight"], stride=pooler))[0].T
    return norm("down_sample_norm", x)
