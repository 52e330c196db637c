"""The CPU decoder alone: a stack of a configured geometry with random weights, and its pools."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from llm.cpu.decoder import NativeDecoder
from llm.cpu.native import Kernel


@dataclass(frozen=True)
class Prefill:
    """A decoder and one request's pools, for prompts up to ``length`` tokens.

    ``windows``: per layer of the configuration, keys visible to the left (-1: all); geometry and
    weights follow the configured kind of the layer, not its window. ``layers`` leaves others out.
    """

    decoder: NativeDecoder
    pools: Any
    hidden: int

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        config: dict[str, Any],
        windows: list[int],
        length: int,
        layers: list[int] | None = None,
    ) -> Prefill:
        generator = torch.Generator().manual_seed(0)
        chosen = list(range(len(windows))) if layers is None else layers
        stack = [_layer(config, i, windows[i], length, generator) for i in chosen]
        norm = SimpleNamespace(
            weight=torch.ones(config["hidden_size"]), variance_epsilon=config["layernorm_epsilon"]
        )
        decoder = NativeDecoder(kernel, stack, norm, torch.float32)
        return cls(decoder, _Pools(stack, length), config["hidden_size"])

    def seconds(self, length: int) -> float:
        """Time of one pass over a prompt of ``length`` tokens."""
        batch = SimpleNamespace(
            forward_mode=_Extend(),
            positions=torch.arange(length),
            out_cache_loc=torch.arange(length),
            req_pool_indices=torch.zeros(1, dtype=torch.int64),
            extend_prefix_lens=torch.zeros(1, dtype=torch.int64),
            extend_seq_lens=torch.tensor([length]),
        )
        embeddings = torch.randn(length, self.hidden)
        start = time.perf_counter()
        self.decoder.forward(embeddings, batch, self.pools)
        return time.perf_counter() - start


class _Extend:
    def is_decode(self) -> bool:
        return False

    is_target_verify = is_decode


class _Pools:
    """Every layer has a slot for every position."""

    layer_transfer_counter = None

    def __init__(self, stack: list[Any], length: int) -> None:
        self.pool = self
        self.req_to_token = torch.arange(length, dtype=torch.int32).unsqueeze(0)
        self._keys, self._values = (
            {
                layer.self_attn.attn.layer_id: torch.zeros(
                    length, layer.self_attn.num_kv_heads, getattr(layer.self_attn, width)
                )
                for layer in stack
            }
            for width in ("head_dim", "v_head_dim")
        )
        self.get_key_buffer = self._keys.__getitem__
        self.get_value_buffer = self._values.__getitem__

    def to_window(self) -> None:
        return None


def _layer(
    config: dict[str, Any], index: int, window: int, length: int, generator: torch.Generator
) -> Any:
    def weight(*shape: int) -> torch.nn.Parameter:
        data = torch.randn(*shape, generator=generator) * 0.05
        return torch.nn.Parameter(data.bfloat16().float(), requires_grad=False)

    kind = "swa_" if config["hybrid_layer_pattern"][index] else ""
    heads, kv_heads = config[f"{kind}num_attention_heads"], config[f"{kind}num_key_value_heads"]
    key, value = config[f"{kind}head_dim"], config[f"{kind}v_head_dim"]
    hidden, sparse = config["hidden_size"], bool(config["moe_layer_freq"][index])
    rotary = int(key * config["partial_rotary_factor"])
    attention = SimpleNamespace(
        qkv_proj=SimpleNamespace(
            weight=weight(heads * key + kv_heads * (key + value), hidden), bias=None
        ),
        o_proj=SimpleNamespace(weight=weight(hidden, heads * value)),
        attention_sink_bias=torch.zeros(heads) if kind else None,
        rotary_emb=SimpleNamespace(
            cos_sin_cache=torch.rand(length, rotary, generator=generator),
            rotary_dim=rotary,
            is_neox_style=True,
        ),
        attn=SimpleNamespace(layer_id=index, sliding_window_size=window),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=key,
        v_head_dim=value,
        scaling=key**-0.5,
        v_scale=config["attention_value_scale"],
    )
    norm = SimpleNamespace(weight=torch.ones(hidden))
    return SimpleNamespace(
        self_attn=attention,
        mlp=_experts(config, weight) if sparse else _dense(config, weight),
        is_layer_sparse=sparse,
        input_layernorm=norm,
        post_attention_layernorm=norm,
    )


def _dense(config: dict[str, Any], weight: Any) -> Any:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return SimpleNamespace(
        gate_up_proj=SimpleNamespace(weight=weight(2 * inner, hidden)),
        down_proj=SimpleNamespace(weight=weight(hidden, inner)),
    )


def _experts(config: dict[str, Any], weight: Any) -> Any:
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    count = config["n_routed_experts"]
    return SimpleNamespace(
        config=SimpleNamespace(**config),
        gate=SimpleNamespace(
            weight=weight(count, hidden), e_score_correction_bias=torch.zeros(count)
        ),
        experts=SimpleNamespace(
            w13_weight=weight(count, 2 * inner, hidden), w2_weight=weight(count, hidden, inner)
        ),
    )
