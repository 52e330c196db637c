"""The trunk's parameters under the checkpoint's tensor names, both ways (mimo-v2.md 8.1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tools.pocket.fused_qkv import QkvRows, fuse, unfuse
from tools.pocket.spec import TextSpec
from tools.pocket.trunk.experts import Experts
from tools.pocket.trunk.model import Attention, DenseMlp, Layer, MtpLayer, Trunk

Tensors = dict[str, torch.Tensor]


def _rows(text: TextSpec, sliding: bool) -> QkvRows:
    groups = text.kv_heads(sliding)
    return QkvRows(
        q=text.num_attention_heads * text.head_dim,
        k=groups * text.head_dim,
        v=groups * text.v_head_dim,
        shards=text.num_key_value_heads,
    )


def _save_attention(text: TextSpec, module: Attention, name: str, sliding: bool) -> Tensors:
    rows = _rows(text, sliding)
    q, k, v = module.qkv.weight.split([rows.q, rows.k, rows.v])
    out = {f"{name}.o_proj.weight": module.o_proj.weight}
    if text.qkv_layout == "fused_qkv":
        out[f"{name}.qkv_proj.weight"] = fuse(q, k, v, rows)
    else:
        out |= {f"{name}.{p}_proj.weight": t for p, t in zip("qkv", (q, k, v), strict=True)}
    if sliding:
        out[f"{name}.attention_sink_bias"] = module.sinks
    return out


def _save_swiglu(gate_up: torch.Tensor, down: torch.Tensor, name: str) -> Tensors:
    gate, up = gate_up.chunk(2)
    return {
        f"{name}.gate_proj.weight": gate,
        f"{name}.up_proj.weight": up,
        f"{name}.down_proj.weight": down,
    }


def _save_layer(text: TextSpec, layer: Layer, name: str, post_norm: str, sliding: bool) -> Tensors:
    out = {
        f"{name}.input_layernorm.weight": layer.input_norm.weight,
        f"{name}.{post_norm}.weight": layer.post_norm.weight,
        **_save_attention(text, layer.attention, f"{name}.self_attn", sliding),
    }
    if isinstance(layer.mlp, DenseMlp):
        mlp = layer.mlp
        return out | _save_swiglu(mlp.gate_up.weight, mlp.down.weight, f"{name}.mlp")
    experts: Experts = layer.mlp
    out[f"{name}.mlp.gate.weight"] = experts.gate
    out[f"{name}.mlp.gate.e_score_correction_bias"] = experts.bias
    for e, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        out |= _save_swiglu(gate_up, down, f"{name}.mlp.experts.{e}")
    return out


def _contiguous(tensors: Tensors) -> Tensors:
    return {name: t.detach().float().contiguous().clone() for name, t in tensors.items()}


def trunk_tensors(trunk: Trunk) -> Tensors:
    """float32 copies of the decoder's tensors (``model.*`` without MTP, and ``lm_head``)."""
    text = trunk.text
    out = {
        "model.embed_tokens.weight": trunk.embed.weight,
        "lm_head.weight": trunk.head.weight,
        "model.norm.weight": trunk.norm.weight,
    }
    for i, layer in enumerate(trunk.layers):
        assert isinstance(layer, Layer)
        sliding = bool(text.hybrid_layer_pattern[i])
        out |= _save_layer(text, layer, f"model.layers.{i}", "post_attention_layernorm", sliding)
    return _contiguous(out)


def mtp_tensors(trunk: Trunk) -> Tensors:
    """float32 copies of the MTP layers' tensors (``model.mtp.*``)."""
    out: Tensors = {}
    for i, mtp in enumerate(trunk.mtp):
        assert isinstance(mtp, MtpLayer)
        name = f"model.mtp.layers.{i}"
        out |= {
            f"{name}.enorm.weight": mtp.enorm.weight,
            f"{name}.hnorm.weight": mtp.hnorm.weight,
            f"{name}.eh_proj.weight": mtp.eh_proj.weight,
            f"{name}.final_layernorm.weight": mtp.final_norm.weight,
            **_save_layer(trunk.text, mtp.layer, name, "pre_mlp_layernorm", True),
        }
    return _contiguous(out)


def _load_attention(
    text: TextSpec, tensors: Mapping[str, torch.Tensor], name: str, sliding: bool
) -> Tensors:
    fused = f"{name}.qkv_proj.weight"
    if fused in tensors:
        parts = list(unfuse(tensors[fused], _rows(text, sliding)))
    else:
        parts = [tensors[f"{name}.{p}_proj.weight"] for p in "qkv"]
    out = {"qkv.weight": torch.cat(parts), "o_proj.weight": tensors[f"{name}.o_proj.weight"]}
    if sliding:
        out["sinks"] = tensors[f"{name}.attention_sink_bias"]
    return out


def _load_swiglu(tensors: Mapping[str, torch.Tensor], name: str) -> tuple[torch.Tensor, ...]:
    gate, up, down = (tensors[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return torch.cat([gate, up]), down


def _load_layer(
    text: TextSpec,
    tensors: Mapping[str, torch.Tensor],
    name: str,
    post_norm: str,
    sliding: bool,
) -> Tensors:
    out = {
        "input_norm.weight": tensors[f"{name}.input_layernorm.weight"],
        "post_norm.weight": tensors[f"{name}.{post_norm}.weight"],
    }
    attention = _load_attention(text, tensors, f"{name}.self_attn", sliding)
    out |= {f"attention.{key}": tensor for key, tensor in attention.items()}
    gate = f"{name}.mlp.gate"
    if f"{gate}.weight" not in tensors:
        gate_up, down = _load_swiglu(tensors, f"{name}.mlp")
        return out | {"mlp.gate_up.weight": gate_up, "mlp.down.weight": down}
    experts = [
        _load_swiglu(tensors, f"{name}.mlp.experts.{e}") for e in range(text.n_routed_experts)
    ]
    return out | {
        "mlp.gate": tensors[f"{gate}.weight"],
        "mlp.bias": tensors[f"{gate}.e_score_correction_bias"],
        "mlp.gate_up": torch.stack([gate_up for gate_up, _ in experts]),
        "mlp.down": torch.stack([down for _, down in experts]),
    }


def load_trunk(trunk: Trunk, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill the trunk, MTP layers included, from a checkpoint's tensors (any float type).

    Raises ``KeyError`` for a missing tensor and ``RuntimeError`` for one of the wrong shape.
    """
    text = trunk.text
    state = {
        "embed.weight": tensors["model.embed_tokens.weight"],
        "head.weight": tensors["lm_head.weight"],
        "norm.weight": tensors["model.norm.weight"],
    }
    for i, sliding in enumerate(text.hybrid_layer_pattern):
        name = f"model.layers.{i}"
        layer = _load_layer(text, tensors, name, "post_attention_layernorm", bool(sliding))
        state |= {f"layers.{i}.{key}": tensor for key, tensor in layer.items()}
    for i in range(text.mtp_layers):
        name = f"model.mtp.layers.{i}"
        for part in ("enorm", "hnorm", "eh_proj"):
            state[f"mtp.{i}.{part}.weight"] = tensors[f"{name}.{part}.weight"]
        state[f"mtp.{i}.final_norm.weight"] = tensors[f"{name}.final_layernorm.weight"]
        layer = _load_layer(text, tensors, name, "pre_mlp_layernorm", True)
        state |= {f"mtp.{i}.layer.{key}": tensor for key, tensor in layer.items()}
    trunk.load_state_dict({name: t.float() for name, t in state.items()}, strict=True)
