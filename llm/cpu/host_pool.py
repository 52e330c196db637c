"""Copies between the KV pools and their host tier (L2), for SGLang's host pool classes.

SGLang moves pages with CUDA kernels. On a CPU both sides are plain memory, so a transfer is one
indexed copy per layer, of whole pages: slots are handed out in aligned pages on both sides.
"""

from __future__ import annotations

from typing import Any

import torch

LAYOUT = "page_first_direct"

# Memory that must stay free when the host pools are made. SGLang's 10 GiB is a server's figure.
RESERVE_BYTES = 2**30


def allocate(
    dims: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    pin_memory: bool,
    allocator: Any,
    registration_granularity_bytes: int | None = None,
) -> torch.Tensor:
    """Host pool memory; nothing to register with a device."""
    buffer: torch.Tensor = allocator.allocate(dims, dtype=dtype, device=device)
    return buffer


def load_layer(
    pool: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    """Copy pages of one layer from the host pool to the device pool.

    Indices are token slots, int64, in whole pages. A layer that the target model has not is the
    draft's, which comes with ``is_draft``.
    """
    if not is_draft and not 0 <= layer_id < pool.target_layer_num:
        return
    _check(pool)
    host, device = _pages(host_indices, pool), _pages(device_indices, pool)
    for buffer, layers in (
        (pool.k_buffer, pool.device_k_buffers),
        (pool.v_buffer, pool.device_v_buffers),
    ):
        _by_page(layers[layer_id], pool.page_size)[device] = buffer[host, layer_id]


def store_layers(
    pool: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    io_backend: str,
) -> None:
    """Copy pages of every layer, the draft's included, from the device pool to the host pool."""
    _check(pool)
    host, device = _pages(host_indices, pool), _pages(device_indices, pool)
    for buffer, layers in (
        (pool.k_buffer, pool.device_k_buffers),
        (pool.v_buffer, pool.device_v_buffers),
    ):
        for layer, source in enumerate(layers):
            buffer[host, layer] = _by_page(source, pool.page_size)[device]


def _pages(slots: torch.Tensor, pool: Any) -> torch.Tensor:
    return slots[:: pool.page_size] // pool.page_size


def _by_page(layer: torch.Tensor, page_size: int) -> torch.Tensor:
    """[slots, heads, width] as [pages, page size, heads, width], the same memory."""
    whole = layer.shape[0] // page_size * page_size
    return layer[:whole].view(-1, page_size, *layer.shape[1:])


def _check(pool: Any) -> None:
    if pool.layout != LAYOUT:
        raise ValueError(f"host pools on a CPU have the layout {LAYOUT}, not {pool.layout}")
