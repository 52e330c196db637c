"""A small decoder with odd sizes, SGLang's pools around it, and its plain twin."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from llm.cpu.native import Kernel, kernel

HIDDEN, SLOTS, EPSILON = 40, 400, 1e-5


def linear(rows: int, columns: int, generator: torch.Generator) -> Any:
    weight = torch.randn(rows, columns, generator=generator) * 0.3
    parameter = torch.nn.Parameter(weight.bfloat16().float(), requires_grad=False)
    return SimpleNamespace(weight=parameter, bias=None)


def make_layer(layer_id: int, window: int, sparse: bool, generator: torch.Generator) -> Any:
    """What a SGLang decoder layer has of interest, with odd sizes."""
    heads, kv_heads, key, value, inner = 6, 2 if window < 0 else 3, 12, 9, 24
    width = heads * key + kv_heads * (key + value)
    sinks = None if window < 0 else torch.randn(heads, generator=generator)
    attention = SimpleNamespace(
        qkv_proj=linear(width, HIDDEN, generator),
        o_proj=linear(HIDDEN, heads * value, generator),
        attention_sink_bias=sinks,
        rotary_emb=SimpleNamespace(
            cos_sin_cache=torch.randn(300, 8, generator=generator),
            rotary_dim=8,
            is_neox_style=True,
        ),
        attn=SimpleNamespace(layer_id=layer_id, sliding_window_size=window),
        num_heads=heads, total_num_heads=heads, num_kv_heads=kv_heads, head_dim=key,
        v_head_dim=value, scaling=key**-0.5, v_scale=0.7,
    )  # fmt: skip
    if sparse:
        shape = SimpleNamespace(
            num_experts_per_tok=2, norm_topk_prob=True, n_group=1, topk_group=1, n_routed_experts=5
        )
        experts = SimpleNamespace(
            w13_weight=torch.nn.Parameter(
                torch.stack([linear(2 * inner, HIDDEN, generator).weight for _ in range(5)]), False
            ),
            w2_weight=torch.nn.Parameter(
                torch.stack([linear(HIDDEN, inner, generator).weight for _ in range(5)]), False
            ),
        )
        gate = SimpleNamespace(
            weight=torch.randn(5, HIDDEN, generator=generator),
            e_score_correction_bias=torch.randn(5, generator=generator) * 0.1,
        )
        mlp = SimpleNamespace(config=shape, experts=experts, gate=gate)
    else:
        mlp = SimpleNamespace(
            gate_up_proj=linear(2 * inner, HIDDEN, generator),
            down_proj=linear(HIDDEN, inner, generator),
        )
    return SimpleNamespace(
        self_attn=attention, mlp=mlp, is_layer_sparse=sparse,
        input_layernorm=SimpleNamespace(weight=torch.rand(HIDDEN, generator=generator) + 0.5),
        post_attention_layernorm=SimpleNamespace(
            weight=torch.rand(HIDDEN, generator=generator) + 0.5
        ),
    )  # fmt: skip


def model(window: int, seed: int = 0) -> tuple[list[Any], Any]:
    generator = torch.Generator().manual_seed(seed)
    layers = [
        make_layer(0, -1, False, generator),
        make_layer(1, window, True, generator),
        make_layer(2, -1, True, generator),
    ]
    norm = SimpleNamespace(
        weight=torch.rand(HIDDEN, generator=generator) + 0.5, variance_epsilon=EPSILON
    )
    return layers, norm


class Pools:
    """Two pools as SGLang has them: slots of the full pool map to slots of the window pool."""

    def __init__(self, layers: list[Any], dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.layer_transfer_counter = None
        self.full_to_swa_index_mapping = torch.randperm(SLOTS, generator=generator)
        self.buffers = {}
        for layer in layers:
            a = layer.self_attn
            shapes = [(SLOTS, a.num_kv_heads, width) for width in (a.head_dim, a.v_head_dim)]
            # Not zero, so that reading a slot of someone else shows.
            self.buffers[a.attn.layer_id] = [torch.full(s, 3.0, dtype=dtype) for s in shapes]
        self.req_to_token = torch.randperm(SLOTS, generator=generator).view(4, -1).int()
        self.pool = self

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.buffers[layer_id][0]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.buffers[layer_id][1]

    def to_window(self) -> int:
        return self.full_to_swa_index_mapping.data_ptr()


@dataclass
class Mode:
    name: str

    def is_decode(self) -> bool:
        return self.name == "decode"

    def is_target_verify(self) -> bool:
        return self.name == "verify"


def make_batch(
    mode: str, pools: Pools, requests: list[int], prefix: list[int], rows: list[int]
) -> Any:
    positions = [torch.arange(p, p + n) for p, n in zip(prefix, rows, strict=True)]
    slots = [pools.req_to_token[r, p] for r, p in zip(requests, positions, strict=True)]
    # SGLang counts the row of a decode step among the sequence, drafted rows not.
    seen = torch.tensor(prefix) + (1 if mode == "decode" else 0)
    return SimpleNamespace(
        forward_mode=Mode(mode),
        positions=torch.cat(positions),
        out_cache_loc=torch.cat(slots).long(),
        req_pool_indices=torch.tensor(requests),
        seq_lens=seen,
        spec_info=SimpleNamespace(draft_token_num=rows[0]),
        extend_prefix_lens=torch.tensor(prefix, dtype=torch.int32),
        extend_seq_lens=torch.tensor(rows, dtype=torch.int32),
    )


def rotated(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    cos, sin = cos_sin.unsqueeze(1).chunk(2, -1)
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]), -1)


def naive(layers: list[Any], norm: Any, x: torch.Tensor) -> torch.Tensor:
    """All rows of one request from position 0, without a cache; [n, H] -> [n, H]."""
    n = len(x)
    for layer in layers:
        a = layer.self_attn
        normed = F.rms_norm(x, (HIDDEN,), layer.input_layernorm.weight, EPSILON)
        sizes = [a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim]
        sizes.append(a.num_kv_heads * a.v_head_dim)
        q, k, v = (normed @ a.qkv_proj.weight.t()).split(sizes, -1)
        angles = a.rotary_emb.cos_sin_cache[:n]
        q = rotated(q.view(n, a.num_heads, -1), angles)
        k = rotated(k.view(n, a.num_kv_heads, -1), angles)
        v = v.view(n, a.num_kv_heads, -1) * a.v_scale
        out = torch.zeros(n, a.num_heads, a.v_head_dim)
        window = a.attn.sliding_window_size
        for i in range(n):
            first = 0 if window < 0 else max(0, i - window)
            for h in range(a.num_heads):
                g = h // (a.num_heads // a.num_kv_heads)
                logits = k[first : i + 1, g] @ q[i, h] * a.scaling
                if a.attention_sink_bias is not None:
                    logits = torch.cat((logits, a.attention_sink_bias[h : h + 1]))
                out[i, h] = logits.softmax(0)[: i + 1 - first] @ v[first : i + 1, g]
        x = x + out.view(n, -1) @ a.o_proj.weight.t()
        normed = F.rms_norm(x, (HIDDEN,), layer.post_attention_layernorm.weight, EPSILON)
        x = x + (naive_experts if layer.is_layer_sparse else naive_dense)(layer.mlp, normed)
    return F.rms_norm(x, (HIDDEN,), norm.weight, EPSILON)


def swiglu(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ gate_up.t()).chunk(2, -1)
    return (F.silu(gate) * up) @ down.t()


def naive_dense(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    return swiglu(x, mlp.gate_up_proj.weight, mlp.down_proj.weight)


def naive_experts(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    scores = (x @ mlp.gate.weight.t()).sigmoid()
    out = torch.zeros_like(x)
    for i, row in enumerate(x):
        chosen = (scores[i] + mlp.gate.e_score_correction_bias).topk(2).indices
        for e in chosen:
            share = scores[i, e] / (scores[i, chosen].sum() + 1e-20)
            out[i] += share * swiglu(row, mlp.experts.w13_weight[e], mlp.experts.w2_weight[e])
    return out


def native() -> Kernel:
    found = kernel()
    assert found is not None, "the kernel is not built; run make env"
    return found


def parameters(layer: Any) -> list[torch.nn.Parameter]:
    a, mlp = layer.self_attn, layer.mlp
    own = (
        [mlp.experts.w13_weight, mlp.experts.w2_weight]
        if layer.is_layer_sparse
        else [mlp.gate_up_proj.weight, mlp.down_proj.weight]
    )
    return [a.qkv_proj.weight, a.o_proj.weight, *own]
