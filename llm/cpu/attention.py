"""SGLang attention back end for a CPU: both KV pools, sinks, value width below key width.

Rows that belong to the same request and arrive few at a time (decode, MTP verify and draft
extend) run as one padded batch without a loop over requests; prefill runs request by request.
Index work is done once per forward pass and shared by all layers of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from llm.cpu.attend import (
    Part,
    apply_sinks,
    attend_grouped,
    grouped_mask,
    prefill_full,
    prefill_window,
)

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

# Requests with at most this many new rows each run as one padded batch.
MAX_BATCHED_ROWS = 16


@dataclass
class Gather:
    """Cache slots of each request's visible keys, padded to m and flat: ``slots`` [B * m] (in
    the pool of the layer kind) and ``mask`` as ``attend_grouped`` takes it."""

    slots: torch.Tensor
    mask: torch.Tensor


@dataclass
class ForwardPlan:
    """What one forward pass needs to know about its rows.

    ``prefix`` and ``rows``: per request, cached tokens before the new rows and number of new
    rows; ``pools``: rows of req_to_token. ``gathers`` holds the padded key slots by window
    (-1 = full attention) when the pass runs as a batch.
    """

    prefix: list[int]
    rows: list[int]
    pools: torch.Tensor
    batched: bool
    gathers: dict[int, Gather] = field(default_factory=dict)


class CpuAttentionBackend(AttentionBackend):
    """Attention over SGLang's KV pools in plain PyTorch."""

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        self.device = model_runner.device
        self.max_context_len = model_runner.model_config.context_len
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.pool = model_runner.token_to_kv_pool
        self.two_pools = isinstance(self.pool, SWAKVPool) and self.pool.swa_layer_nums > 0
        self.swa_out_cache_loc: torch.Tensor | None = None
        self.plan: ForwardPlan | None = None

    def support_triton(self) -> bool:
        return False

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        # Made when the first layer asks: the decoder kernel needs none of it.
        self.plan = None

    def to_window(self) -> int | None:
        """Address of the map from slots of the full pool to window slots, or None: one pool."""
        if not self.two_pools:
            return None
        mapping = self.pool.full_to_swa_index_mapping
        assert mapping.dtype == torch.int64
        address: int = mapping.data_ptr()
        return address

    def _plan(self, forward_batch: ForwardBatch) -> ForwardPlan:
        if self.plan is None:
            self.plan = _plan(forward_batch)
            self.swa_out_cache_loc = None
            if self.two_pools and forward_batch.out_cache_loc is not None:
                self.swa_out_cache_loc = self.pool.translate_loc_from_full_to_swa(
                    forward_batch.out_cache_loc
                )
        return self.plan

    def forward_decode(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._forward(*args, **kwargs)

    def forward_extend(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._forward(*args, **kwargs)

    def _forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
        **unsupported: Any,
    ) -> torch.Tensor:
        if unsupported or layer.is_cross_attention or layer.logit_cap or not save_kv_cache:
            raise NotImplementedError(
                f"layer {layer.layer_id} asks the CPU attention back end for more than causal "
                f"attention with a window and sinks: {sorted(unsupported) or 'cross, cap, no save'}"
            )
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        k = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
        v = v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
        plan = self._plan(forward_batch)
        self.pool.set_kv_buffer(
            layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v
        )
        if plan.batched:
            out = self._batched(q, layer, plan, sinks)
        else:
            out = self._request_by_request(q, k, v, layer, plan, sinks)
        return out.reshape(-1, layer.tp_q_head_num * layer.v_head_dim)

    def _batched(
        self,
        q: torch.Tensor,
        layer: RadixAttention,
        plan: ForwardPlan,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        window = layer.sliding_window_size
        gather = plan.gathers.get(window)
        if gather is None:
            sharing = layer.tp_q_head_num // layer.tp_k_head_num
            gather = plan.gathers[window] = self._gather(plan, window, sharing, q.dtype)
        queries = q.view(len(plan.rows), -1, *q.shape[1:]).transpose(1, 2)
        keys = self._gathered(gather, self._key_buffer(layer), q)
        values = self._gathered(gather, self._value_buffer(layer), q)
        part = attend_grouped(queries, keys, values, layer.scaling, gather.mask)
        return apply_sinks(part, sinks).transpose(1, 2)

    @staticmethod
    def _gathered(gather: Gather, buffer: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """[slots of the pool, G, width] -> [B, G, m, width]."""
        rows = buffer.index_select(0, gather.slots).to(q.dtype)
        return rows.view(gather.mask.shape[0], -1, *buffer.shape[1:]).transpose(1, 2)

    def _gather(self, plan: ForwardPlan, window: int, sharing: int, dtype: torch.dtype) -> Gather:
        prefix = torch.tensor(plan.prefix).unsqueeze(1)
        n = plan.rows[0]
        if window < 0:
            positions = torch.arange(max(plan.prefix) + n).unsqueeze(0)
        else:
            positions = prefix + torch.arange(-window, n)
        query = (prefix + torch.arange(n)).unsqueeze(2)
        key = positions.unsqueeze(1)
        allowed = (key <= query) & (key >= 0)
        if window >= 0:
            allowed &= key >= query - window
        slots = self._slots(plan.pools.unsqueeze(1), positions.clamp(min=0), window)
        return Gather(slots.view(-1), grouped_mask(allowed.unsqueeze(1), sharing, dtype))

    def _request_by_request(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        plan: ForwardPlan,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        window = layer.sliding_window_size
        out = q.new_empty(q.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        start = 0
        for i, (prefix, n) in enumerate(zip(plan.prefix, plan.rows, strict=True)):
            own = slice(start, start + n)
            start += n
            if n == 0:
                continue
            cached = self._cached(plan.pools[i], layer, prefix, window, q.dtype)
            if window < 0:
                part = prefill_full(q[own], k[own], v[own], layer.scaling, cached)
            else:
                part = prefill_window(q[own], k[own], v[own], layer.scaling, window, cached)
            out[own] = apply_sinks(part, sinks)[0].transpose(0, 1)
        return out

    def _cached(
        self,
        pool: torch.Tensor,
        layer: RadixAttention,
        prefix: int,
        window: int,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Cached keys and values that the new rows of one request may see."""
        first = 0 if window < 0 else max(0, prefix - window)
        if first == prefix:
            return None
        slots = self._slots(pool, torch.arange(first, prefix), window)
        return (
            self._key_buffer(layer)[slots].to(dtype),
            self._value_buffer(layer)[slots].to(dtype),
        )

    def _slots(self, pools: torch.Tensor, positions: torch.Tensor, window: int) -> torch.Tensor:
        """Slots, in the pool of the layer kind, of token positions of requests.

        Positions past a request's end read whatever stands there; they are masked.
        """
        slots = self.req_to_token[pools, positions.clamp(max=self.req_to_token.shape[1] - 1)]
        slots = slots.clamp(min=0).long()
        if window >= 0 and self.two_pools:
            slots = self.pool.translate_loc_from_full_to_swa(slots).clamp(min=0).long()
        return slots

    def _key_buffer(self, layer: RadixAttention) -> torch.Tensor:
        return self.pool.get_key_buffer(layer.layer_id)

    def _value_buffer(self, layer: RadixAttention) -> torch.Tensor:
        return self.pool.get_value_buffer(layer.layer_id)


def _plan(batch: ForwardBatch) -> ForwardPlan:
    mode = batch.forward_mode
    if mode.is_idle():
        return ForwardPlan([], [], batch.req_pool_indices, batched=False)
    seq_lens = batch.seq_lens.tolist()
    if mode.is_decode():
        prefix, rows = [n - 1 for n in seq_lens], [1] * len(seq_lens)
    elif mode.is_target_verify():
        # Here seq_lens does not count the drafted rows.
        prefix, rows = seq_lens, [batch.spec_info.draft_token_num] * len(seq_lens)
    else:
        prefix, rows = batch.extend_prefix_lens.tolist(), batch.extend_seq_lens.tolist()
    uniform = len(set(rows)) == 1 and rows[0] <= MAX_BATCHED_ROWS
    return ForwardPlan(prefix, rows, batch.req_pool_indices, batched=uniform)


__all__ = ["CpuAttentionBackend", "ForwardPlan", "Part"]
