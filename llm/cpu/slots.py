"""KV slot bookkeeping that SGLang does in Triton kernels, vectorised over requests."""

from __future__ import annotations

from typing import Any

import torch


def ragged_positions(starts: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(request index, position) of every integer in the ranges [starts[i], ends[i])."""
    lengths = (ends - starts).long()
    request = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    first = torch.cumsum(lengths, 0) - lengths
    offset = torch.arange(int(lengths.sum())) - first[request]
    return request, starts.long()[request] + offset


def extend_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
    device: Any,
) -> torch.Tensor:
    """Slots of positions [start, end) of each request, packed; int64 [batch * draft tokens]."""
    request, position = ragged_positions(start_offset, end_offset)
    packed = req_to_token[req_pool_indices[request], position].long()
    out = torch.zeros(batch_size * draft_token_num, dtype=torch.int64, device=device)
    out[: len(packed)] = packed
    return out


def assign_req_to_token(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """Write packed slots to positions [start, end) of each request's row, in place."""
    request, position = ragged_positions(start_offset, end_offset)
    req_to_token[req_pool_indices[request], position] = out_cache_loc[: len(request)].to(
        req_to_token.dtype
    )


def assign_draft_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    topk: int,
    num_cols: int,
    positions: torch.Tensor | None = None,
    mrope: torch.Tensor | None = None,
) -> None:
    """The ``topk * num_cols`` slots after each request's end, into ``out_cache_loc``, in place."""
    columns = seq_lens.long().unsqueeze(1) + torch.arange(topk * num_cols)
    rows = req_to_token[req_pool_indices.unsqueeze(1), columns]
    out_cache_loc[: rows.numel()] = rows.reshape(-1).to(out_cache_loc.dtype)
    if positions is not None:
        positions.view(-1, topk)[: len(seq_lens)] = seq_lens.long().unsqueeze(1)
    if mrope is not None:
        mrope.view(3, -1, topk)[:, : len(seq_lens)] = seq_lens.long().unsqueeze(1)


def fill_front_cache_locs(
    num_front: torch.Tensor, out_cache_loc: torch.Tensor, front_out_cache_loc: torch.Tensor
) -> None:
    """Pack the first ``num_front[i]`` slots of request i's window, in place."""
    window = out_cache_loc.view(num_front.numel(), -1)
    request, column = ragged_positions(torch.zeros_like(num_front), num_front)
    front_out_cache_loc[: len(request)] = window[request, column].to(front_out_cache_loc.dtype)


def fill_accept_cache_locs(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accept_out_cache_loc: torch.Tensor,
    size: int,
) -> None:
    """Pack the slots whose ``accept_index`` is not -1, in place."""
    flat = accept_index.reshape(-1)[:size]
    taken = out_cache_loc[flat[flat >= 0].long()]
    accept_out_cache_loc[: len(taken)] = taken
