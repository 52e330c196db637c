"""Sampling helpers that SGLang has only as device kernels."""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def top_k_renorm(probs: torch.Tensor, top_k: torch.Tensor | int) -> torch.Tensor:
    """Zero all but the ``top_k`` most likely tokens of each row [rows, V] and renormalise.

    Tokens that tie with the k-th stay, as in FlashInfer's kernel.
    """
    k = torch.as_tensor(top_k).expand(probs.shape[0]).long().clamp(1, probs.shape[1])
    pivot = probs.sort(dim=1, descending=True).values.gather(1, k.unsqueeze(1) - 1)
    return _renormalise(torch.where(probs >= pivot, probs, 0.0))


def top_p_renorm(probs: torch.Tensor, top_p: torch.Tensor | float) -> torch.Tensor:
    """Keep the smallest set of most likely tokens of each row whose mass reaches ``top_p``."""
    p = torch.as_tensor(top_p, dtype=probs.dtype).expand(probs.shape[0]).unsqueeze(1)
    ordered, index = probs.sort(dim=1, descending=True)
    before = ordered.cumsum(1) - ordered
    kept = torch.where(before < p, ordered, 0.0)
    # The most likely token stays for any top_p.
    kept[:, 0] = ordered[:, 0]
    return _renormalise(torch.zeros_like(probs).scatter_(1, index, kept))


def row_argmax(x: torch.Tensor) -> torch.Tensor:
    return x.argmax(dim=-1)


def murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor
) -> torch.Tensor:
    """MurmurHash3 (x86, 32 bit) of (64-bit seed, position, column); uint32 [rows, columns].

    ``seed`` and ``positions`` [rows], ``col_indices`` [columns]. Computed in int64, since
    PyTorch has no unsigned arithmetic.
    """
    seed, positions = seed.long().unsqueeze(1), positions.long().unsqueeze(1)
    h = torch.zeros(seed.shape[0], col_indices.shape[0], dtype=torch.int64)
    for block in (seed & _MASK, (seed >> 32) & _MASK, positions & _MASK, col_indices.long()):
        k = _rotate(_multiply(block & _MASK, 0xCC9E2D51), 15)
        h = h ^ _multiply(k, 0x1B873593)
        h = (_multiply(_rotate(h, 13), 5) + 0xE6546B64) & _MASK
    h = h ^ 16
    h = _multiply(h ^ (h >> 16), 0x85EBCA6B)
    h = _multiply(h ^ (h >> 13), 0xC2B2AE35)
    return (h ^ (h >> 16)).to(torch.uint32)


def _renormalise(probs: torch.Tensor) -> torch.Tensor:
    return probs / probs.sum(1, keepdim=True)


def _multiply(a: torch.Tensor, b: int) -> torch.Tensor:
    """a * b mod 2**32 for 0 <= a, b < 2**32, without overflowing int64."""
    low, high = a & 0xFFFF, a >> 16
    return (low * b + (((high * b) & 0xFFFF) << 16)) & _MASK


def _rotate(a: torch.Tensor, bits: int) -> torch.Tensor:
    return ((a << bits) | (a >> (32 - bits))) & _MASK
