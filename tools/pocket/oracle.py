"""The language model of a checkpoint as transformers' own MiMo-V2, for parity tests.

``load_oracle`` reads a checkpoint directory and fills transformers' in-tree
``MiMoV2FlashForCausalLM`` (float32, eager attention). The implementation shares no code with
SGLang or with this project, so equal logits mean that loading, head order, rotary embedding,
window, sinks, value scale and routing agree.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM

from tools.pocket.fused_qkv import QkvRows, unfuse


def oracle_config(config: dict[str, Any]) -> MiMoV2FlashConfig:
    """Translate ``config.json`` of the MiMo-V2.5 schema.

    transformers keeps keys with ``q - k < sliding_window``, SGLang those with
    ``q - k <= sliding_window``. SGLang's meaning is ours, hence the plus one.
    Raises ``ValueError`` for a geometry that transformers' class cannot express.
    """
    if config["swa_num_key_value_heads"] != 2 * config["num_key_value_heads"]:
        raise ValueError("transformers' MiMo-V2 needs twice as many KV heads in window layers")
    for name in ("num_attention_heads", "head_dim", "v_head_dim"):
        if config[f"swa_{name}"] != config[name]:
            raise ValueError(f"transformers' MiMo-V2 has one {name} for both kinds of layer")
    rope = {"rope_type": "default", "partial_rotary_factor": config["partial_rotary_factor"]}
    kinds = ("full_attention", "sliding_attention")
    same = (
        *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size"),
        *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "v_head_dim", "max_position_embeddings", "attention_value_scale"),
        *("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group"),
        *("norm_topk_prob", "routed_scaling_factor", "hidden_act", "tie_word_embeddings"),
        *("eos_token_id", "pad_token_id", "bos_token_id"),
    )
    return MiMoV2FlashConfig(
        **{name: config[name] for name in same},
        rms_norm_eps=config["layernorm_epsilon"],
        sliding_window=config["sliding_window_size"] + 1,
        layer_types=[kinds[kind] for kind in config["hybrid_layer_pattern"]],
        mlp_layer_types=["sparse" if moe else "dense" for moe in config["moe_layer_freq"]],
        rope_parameters={
            "full_attention": {**rope, "rope_theta": config["rope_theta"]},
            "sliding_attention": {**rope, "rope_theta": config["swa_rope_theta"]},
        },
    )


def _qkv_rows(config: dict[str, Any], layer: int) -> QkvRows:
    prefix = "swa_" if config["hybrid_layer_pattern"][layer] else ""
    groups = config[f"{prefix}num_key_value_heads"]
    return QkvRows(
        q=config[f"{prefix}num_attention_heads"] * config[f"{prefix}head_dim"],
        k=groups * config[f"{prefix}head_dim"],
        v=groups * config[f"{prefix}v_head_dim"],
        shards=config["num_key_value_heads"],
    )


def oracle_state(
    tensors: dict[str, torch.Tensor], config: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Rename and rearrange the language model's tensors for transformers, in float32."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if not name.startswith(("model.", "lm_head.")) or name.startswith("model.mtp."):
            continue
        tensor = tensor.float()
        if name.endswith("self_attn.qkv_proj.weight"):
            rows = _qkv_rows(config, int(name.split(".")[2]))
            for part, value in zip("qkv", unfuse(tensor, rows), strict=True):
                state[name.replace("qkv_proj", f"{part}_proj")] = value
        elif ".mlp.experts." not in name:
            state[name.replace("attention_sink_bias", "sinks")] = tensor
    for layer, sparse in enumerate(config["moe_layer_freq"]):
        if not sparse:
            continue
        prefix = f"model.layers.{layer}.mlp.experts"

        def stack(part: str, prefix: str = prefix) -> torch.Tensor:
            experts = range(config["n_routed_experts"])
            return torch.stack([tensors[f"{prefix}.{e}.{part}.weight"].float() for e in experts])

        state[f"{prefix}.gate_up_proj"] = torch.cat([stack("gate_proj"), stack("up_proj")], dim=1)
        state[f"{prefix}.down_proj"] = stack("down_proj")
    return state


def load_oracle(checkpoint: Path) -> MiMoV2FlashForCausalLM:
    """Build the float32 model of ``checkpoint``. Call it as ``model(input_ids).logits``."""
    config = json.loads((checkpoint / "config.json").read_text())
    flash = oracle_config(config)
    flash._attn_implementation = "eager"
    flash._experts_implementation = "eager"
    model = MiMoV2FlashForCausalLM(flash)
    state = oracle_state(load_file(checkpoint / "model.safetensors"), config)
    model.load_state_dict(state, strict=True)
    return model.float().eval()
