"""A loaded MiMo-V2 stack run by the decoder kernel: one call per forward pass, whatever its rows.

Decode, MTP verify, draft extend and prefill take the same path: new keys and values go to
SGLang's pools, attention reads them there through the request table. A row's result does not
depend on the batch it is in, bit for bit, so speculative and plain decoding agree exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, pointer
from typing import Any

import torch

from llm.cpu.native import (
    MAX_KEY_HEADS,
    MAX_SHARING,
    MAX_WIDTH,
    Batch,
    Decoder,
    Kernel,
    Layer,
    pack,
    pack_gated,
)

DTYPES = (torch.float32, torch.bfloat16)


class Unsupported(Exception):
    """The model has something the kernel was not written for; SGLang's own layers run it."""


class NativeDecoder:
    """Packed layers of one model and the pool they write to.

    ``layers``: SGLang decoder layers (attention, dense or expert feed-forward). Packing takes
    their weights away, so that a model is in memory once; all are checked before the first is
    touched. float32 weights that a bfloat16 checkpoint was read into are packed as bfloat16: the
    same numbers in half the memory traffic, which is what few rows wait for. Raises Unsupported
    naming what the kernel cannot do.
    """

    def __init__(
        self, kernel: Kernel, layers: Sequence[Any], final_norm: Any, dtype: torch.dtype
    ) -> None:
        if dtype not in DTYPES:
            raise Unsupported(f"weights are {dtype}")
        for layer in layers:
            _check(layer, dtype)
        narrow = all(is_narrow(w) for layer in layers for w in _weights(layer))
        self._packed = torch.bfloat16 if narrow else torch.float32
        self.kernel = kernel
        self.dtype = dtype
        self.hidden = final_norm.weight.shape[0]
        self.layer_ids = [layer.self_attn.attn.layer_id for layer in layers]
        self._kept: list[torch.Tensor] = []
        self._layers = (Layer * len(layers))(*map(self._layer, layers))
        self.model = Decoder(
            layers=self._layers,
            final_norm=self._keep(final_norm.weight.float()),
            layer_count=len(layers),
            hidden=self.hidden,
            narrow_weights=int(narrow),
            epsilon=final_norm.variance_epsilon,
        )
        self.model_pointer = pointer(self.model)
        self._pool: Any = None

    def forward(
        self, embeddings: torch.Tensor, forward_batch: Any, backend: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Final hidden states [T, H] after and before the last norm, in the model's dtype.

        ``embeddings`` [T, H]; ``backend``: the attention back end of the running pass, for its
        pool and request table.
        """
        rows = embeddings.shape[0]
        residual = embeddings.to(torch.float32, copy=True)
        out = torch.empty(rows, self.hidden)
        if rows:
            self.bind(backend.pool)
            batch, kept = _batch(forward_batch, backend, residual, out)
            self.kernel.forward(self.model_pointer, byref(batch))
            del kept
        return out.to(self.dtype), residual.to(self.dtype)

    def bind(self, pool: Any) -> None:
        """Point the layers at their buffers; a load from another tier may still be under way."""
        if pool is self._pool and getattr(pool, "layer_transfer_counter", None) is None:
            return
        for entry, layer_id in zip(self._layers, self.layer_ids, strict=True):
            keys, values = pool.get_key_buffer(layer_id), pool.get_value_buffer(layer_id)
            entry.keys, entry.values = keys.data_ptr(), values.data_ptr()
        if keys.dtype not in DTYPES:
            raise NotImplementedError(f"the CPU decoder cannot keep its cache in {keys.dtype}")
        self.model.narrow_cache = int(keys.dtype == torch.bfloat16)
        self._pool = pool

    def _keep(self, tensor: torch.Tensor) -> int:
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _take(self, owner: Any, name: str, packed: torch.Tensor) -> int:
        parameter = getattr(owner, name)
        parameter.data = torch.empty(0, dtype=parameter.dtype)
        return self._keep(packed.to(self._packed))

    def _layer(self, layer: Any) -> Layer:
        attention = layer.self_attn
        sinks = attention.attention_sink_bias
        rotary = attention.rotary_emb
        entry = Layer(
            attention_norm=self._keep(layer.input_layernorm.weight.float()),
            ffn_norm=self._keep(layer.post_attention_layernorm.weight.float()),
            sinks=None if sinks is None else self._keep(sinks.float()),
            cos_sin=self._keep(rotary.cos_sin_cache.float()),
            qkv=self._take(attention.qkv_proj, "weight", pack(attention.qkv_proj.weight)),
            o=self._take(attention.o_proj, "weight", pack(attention.o_proj.weight)),
            heads=attention.num_heads,
            kv_heads=attention.num_kv_heads,
            key_width=attention.head_dim,
            value_width=attention.v_head_dim,
            rotary=rotary.rotary_dim,
            window=attention.attn.sliding_window_size,
            scale=attention.scaling,
            value_scale=1.0 if attention.v_scale is None else attention.v_scale,
        )
        (self._experts if layer.is_layer_sparse else self._dense)(entry, layer.mlp)
        return entry

    def _dense(self, entry: Layer, mlp: Any) -> None:
        gate, up = mlp.gate_up_proj.weight.chunk(2)
        entry.inner = gate.shape[0]
        entry.gate_up = self._take(mlp.gate_up_proj, "weight", pack_gated(gate, up))
        entry.down = self._take(mlp.down_proj, "weight", pack(mlp.down_proj.weight))

    def _experts(self, entry: Layer, mlp: Any) -> None:
        config, experts = mlp.config, mlp.experts
        pairs = [w.chunk(2) for w in experts.w13_weight]
        entry.experts = len(pairs)
        entry.top_k = config.num_experts_per_tok
        entry.inner = pairs[0][0].shape[0]
        entry.renormalize = int(config.norm_topk_prob)
        entry.routed_scale = 1.0
        entry.router = self._keep(pack(mlp.gate.weight.float()))
        entry.router_bias = self._keep(mlp.gate.e_score_correction_bias.float())
        gate_up = torch.stack([pack_gated(gate, up) for gate, up in pairs])
        entry.gate_up = self._take(experts, "w13_weight", gate_up)
        down = torch.stack([pack(w) for w in experts.w2_weight])
        entry.down = self._take(experts, "w2_weight", down)


def _check(layer: Any, dtype: torch.dtype) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    if getattr(attention, "total_num_heads", attention.num_heads) != attention.num_heads:
        raise Unsupported("tensor parallelism")
    if max(attention.head_dim, attention.v_head_dim) > MAX_WIDTH:
        raise Unsupported(f"heads wider than {MAX_WIDTH}")
    if attention.num_kv_heads > MAX_KEY_HEADS:
        raise Unsupported(f"more than {MAX_KEY_HEADS} key heads")
    if attention.num_heads > MAX_SHARING * attention.num_kv_heads:
        raise Unsupported(f"more than {MAX_SHARING} query heads per key head")
    if attention.qkv_proj.bias is not None or not attention.rotary_emb.is_neox_style:
        raise Unsupported("projection biases or interleaved rotary embedding")
    if layer.is_layer_sparse:
        config = mlp.config
        if config.n_group != config.topk_group or mlp.gate.e_score_correction_bias is None:
            raise Unsupported("routing by expert groups or without a correction bias")
        if mlp.experts.w13_weight.shape[0] != config.n_routed_experts:
            raise Unsupported("redundant experts")
    other = {w.dtype for w in _weights(layer)} - {dtype}
    if other:
        raise Unsupported(f"weights of other types: {other}")


def _weights(layer: Any) -> list[torch.Tensor]:
    attention, mlp = layer.self_attn, layer.mlp
    if layer.is_layer_sparse:
        own = [mlp.experts.w13_weight, mlp.experts.w2_weight]
    else:
        own = [mlp.gate_up_proj.weight, mlp.down_proj.weight]
    return [attention.qkv_proj.weight, attention.o_proj.weight, *own]


def is_narrow(weight: torch.Tensor) -> bool:
    """Whether every value is a bfloat16 number."""
    return weight.dtype == torch.bfloat16 or torch.equal(weight.bfloat16().float(), weight)


def _batch(
    forward_batch: Any, backend: Any, residual: torch.Tensor, out: torch.Tensor
) -> tuple[Batch, list[torch.Tensor]]:
    """The kernel's description of a pass, and tensors that must outlive the call."""
    mode = forward_batch.forward_mode
    kept = [forward_batch.positions.long(), forward_batch.out_cache_loc.long()]
    kept.append(forward_batch.req_pool_indices.long())
    counts: torch.Tensor | None = None
    each = offset = 0
    if mode.is_decode():
        prefix, each, offset = forward_batch.seq_lens, 1, -1
    elif mode.is_target_verify():
        # Here seq_lens does not count the drafted rows.
        prefix, each = forward_batch.seq_lens, forward_batch.spec_info.draft_token_num
    else:
        prefix, counts = forward_batch.extend_prefix_lens, forward_batch.extend_seq_lens.long()
        kept.append(counts)
    kept.append(prefix.long())
    table = backend.req_to_token
    batch = Batch(
        positions=kept[0].data_ptr(),
        slots=kept[1].data_ptr(),
        pools=kept[2].data_ptr(),
        prefix=kept[-1].data_ptr(),
        row_counts=None if counts is None else counts.data_ptr(),
        request_slots=table.data_ptr(),
        to_window=backend.to_window(),
        residual=residual.data_ptr(),
        out=out.data_ptr(),
        rows=residual.shape[0],
        requests=len(kept[2]),
        rows_each=each,
        prefix_offset=offset,
        request_stride=table.stride(0),
    )
    return batch, kept
