"""The decoder kernel against a plain twin, and against itself in other batches."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.cpu.build import LEVELS, best_level, library
from llm.cpu.decoder import NativeDecoder, Unsupported, is_narrow
from llm.cpu.native import Kernel, kernel, pack, pack_gated

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


@settings(max_examples=40, deadline=None)
@given(
    window=st.sampled_from([1, 4, 70]),
    prefixes=st.lists(st.integers(0, 90), min_size=1, max_size=4),
    rows=st.integers(1, 9),
    ragged=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_the_naive_twin(
    window: int, prefixes: list[int], rows: int, ragged: bool, seed: int
) -> None:
    """Each request in two passes: its prefix, then new rows in one of the modes."""
    layers, norm = model(window)
    counts = [rows + (i % 2 if ragged else 0) for i in range(len(prefixes))]
    generator = torch.Generator().manual_seed(seed)
    inputs = [
        torch.randn(p + n, HIDDEN, generator=generator)
        for p, n in zip(prefixes, counts, strict=True)
    ]
    expected = [naive(layers, norm, x)[p:] for x, p in zip(inputs, prefixes, strict=True)]
    requests = torch.randperm(4, generator=generator)[: len(prefixes)].tolist()

    pools = Pools(layers, torch.float32, seed)
    decoder = NativeDecoder(native(), layers, norm, torch.float32)
    first = make_batch("extend", pools, requests, [0] * len(prefixes), prefixes)
    embeds = torch.cat([x[:p] for x, p in zip(inputs, prefixes, strict=True)])
    decoder.forward(embeds, first, pools)
    mode = "extend" if ragged else "decode" if rows == 1 else "verify"
    second = make_batch(mode, pools, requests, prefixes, counts)
    new = torch.cat([x[p:] for x, p in zip(inputs, prefixes, strict=True)])
    hidden, before_norm = decoder.forward(new, second, pools)
    torch.testing.assert_close(hidden, torch.cat(expected), atol=2e-4, rtol=2e-4)
    again = F.rms_norm(before_norm, (HIDDEN,), norm.weight, EPSILON)
    torch.testing.assert_close(hidden, again, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_its_batch(dtype: torch.dtype, cache: torch.dtype) -> None:
    """Bit for bit: prompt in one piece or many, rows one by one or together, alone or not."""
    window, length = 5, 75
    x = torch.randn(2, length, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)
    results = []
    for steps in ([length], [40, 4, 4, 1, 1, 25], [1] * length, [64, 11]):
        for together in (True, False):
            layers, norm = model(window)
            for layer in layers:
                for module in _parameters(layer):
                    module.data = module.data.to(dtype)
            pools = Pools(layers, cache, 7)
            decoder = NativeDecoder(native(), layers, norm, dtype)
            rows: list[list[torch.Tensor]] = [[], []]
            for requests in [[0, 1]] if together else [[0], [1]]:
                at = 0
                for n in steps:
                    prefix, counts = [at] * len(requests), [n] * len(requests)
                    batch = make_batch("extend", pools, requests, prefix, counts)
                    embeds = torch.cat([x[r, at : at + n] for r in requests])
                    out = decoder.forward(embeds, batch, pools)[0]
                    for r, part in zip(requests, out.split(n), strict=True):
                        rows[r].append(part)
                    at += n
            results.append(torch.stack([torch.cat(parts) for parts in rows]))
    for other in results[1:]:
        assert torch.equal(results[0], other)


def _parameters(layer: Any) -> list[torch.nn.Parameter]:
    a, mlp = layer.self_attn, layer.mlp
    own = (
        [mlp.experts.w13_weight, mlp.experts.w2_weight]
        if layer.is_layer_sparse
        else [mlp.gate_up_proj.weight, mlp.down_proj.weight]
    )
    return [a.qkv_proj.weight, a.o_proj.weight, *own]


def test_both_instruction_sets_agree() -> None:
    """Where the machine has AVX-512 it also has AVX2, which other machines run."""
    level = best_level()
    assert level is not None
    results = []
    for name in list(LEVELS)[list(LEVELS).index(level) :]:
        layers, norm = model(4)
        pools = Pools(layers, torch.float32, 3)
        decoder = NativeDecoder(Kernel(str(library(name))), layers, norm, torch.float32)
        batch = make_batch("extend", pools, [0, 1], [0, 0], [50, 7])
        x = torch.randn(57, HIDDEN, generator=torch.Generator().manual_seed(2))
        results.append(decoder.forward(x, batch, pools)[0])
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-4, rtol=1e-4)


def test_packing_takes_the_weights_and_keeps_their_numbers() -> None:
    layers, norm = model(4)
    assert all(is_narrow(p) for layer in layers for p in _parameters(layer))
    layers[0].self_attn.o_proj.weight.data[0, 0] += 2**-20
    assert not is_narrow(layers[0].self_attn.o_proj.weight)
    NativeDecoder(native(), layers, norm, torch.float32)
    assert all(p.numel() == 0 for layer in layers for p in _parameters(layer))


def test_linear_and_packing() -> None:
    generator = torch.Generator().manual_seed(5)
    for rows, columns, k in ((1, 5, 7), (6, 64, 33), (13, 100, 20)):
        x = torch.randn(rows, k, generator=generator)
        w = torch.randn(columns, k, generator=generator).bfloat16()
        for packed in (pack(w), pack(w.float())):
            got = native().linear(x, packed, columns)
            torch.testing.assert_close(got, x @ w.float().t(), atol=1e-4, rtol=1e-4)
    gate, up = torch.arange(40.0).view(20, 2), -torch.arange(40.0).view(20, 2)
    panels = pack_gated(gate, up)
    assert panels.shape == (2, 2, 32)
    assert panels[1, :, 3].tolist() == gate[19].tolist()
    assert panels[1, :, 16 + 3].tolist() == up[19].tolist()
    assert panels[1, :, 4:16].abs().sum() == 0


def test_what_the_kernel_cannot_do_is_named() -> None:
    layers, norm = model(4)
    with pytest.raises(Unsupported, match="float16"):
        NativeDecoder(native(), layers, norm, torch.float16)
    layers[1].mlp.config.n_group = 2
    with pytest.raises(Unsupported, match="expert groups"):
        NativeDecoder(native(), layers, norm, torch.float32)
    layers[1].mlp.config.n_group = 1
    layers[1].self_attn.total_num_heads = 12
    with pytest.raises(Unsupported, match="tensor parallelism"):
        NativeDecoder(native(), layers, norm, torch.float32)
    assert all(p.numel() for layer in layers for p in _parameters(layer)), "weights were taken"


def test_a_cache_of_another_type_is_refused() -> None:
    layers, norm = model(4)
    pools = Pools(layers, torch.float16, 3)
    decoder = NativeDecoder(native(), layers, norm, torch.float32)
    batch = make_batch("decode", pools, [0], [3], [1])
    with pytest.raises(NotImplementedError, match="float16"):
        decoder.forward(torch.zeros(1, HIDDEN), batch, pools)


def test_the_best_level_fits_the_machine() -> None:
    avx2 = {"avx2", "fma", "bmi1", "bmi2", "f16c"}
    avx512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    assert best_level(avx2 | avx512) == "avx512"
    assert best_level(avx2) == "avx2"
    assert best_level({"sse2"}) is None
