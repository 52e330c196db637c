"""Names, shapes, dtypes and random initialisation of every tensor in a checkpoint.

The names are those of mimo-v2.md section 8.1. The scales are chosen so that a random model
behaves like a strong one: attention scores have a standard deviation of 2 to 3, every
residual branch adds about as much as the stream holds, and sinks, router corrections and norms
are away from their neutral values. A wrong mask, head order or scale then changes the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tools.pocket.spec import AudioEncoderSpec, AudioTokenizerSpec, PocketSpec, TextSpec, VisionSpec

Dtype = Literal["bfloat16", "float32"]


@dataclass(frozen=True)
class TensorPlan:
    """One tensor: values are ``mean + std * normal``; ``zero_row`` is set to zero if given."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0
    dtype: Dtype = "bfloat16"
    zero_row: int | None = None


QK_GAIN = 1.5
OUT_GAIN = 1.5
SINK_MEAN = 4.0  # takes a tenth or two of the attention of a 33-key window


def _linear(name: str, out: int, inp: int, gain: float = 1.0) -> TensorPlan:
    return TensorPlan(f"{name}.weight", (out, inp), gain * inp**-0.5)


def _bias(name: str, size: int, std: float = 0.1) -> TensorPlan:
    return TensorPlan(f"{name}.bias", (size,), std)


def _norm(name: str, size: int) -> TensorPlan:
    return TensorPlan(f"{name}.weight", (size,), 0.1, mean=1.0)


def _swiglu(name: str, hidden: int, width: int) -> Iterator[TensorPlan]:
    yield _linear(f"{name}.gate_proj", width, hidden)
    yield _linear(f"{name}.up_proj", width, hidden)
    yield _linear(f"{name}.down_proj", hidden, width, OUT_GAIN)


def _attention(text: TextSpec, name: str, sliding: bool) -> Iterator[TensorPlan]:
    heads, groups = text.num_attention_heads, text.kv_heads(sliding)
    rows = {
        "q_proj": heads * text.head_dim,
        "k_proj": groups * text.head_dim,
        "v_proj": groups * text.v_head_dim,
    }
    if text.qkv_layout == "fused_qkv":
        rows = {"qkv_proj": sum(rows.values())}
    for part, out in rows.items():
        yield _linear(f"{name}.{part}", out, text.hidden_size, QK_GAIN)
    yield _linear(f"{name}.o_proj", text.hidden_size, heads * text.v_head_dim, OUT_GAIN)
    if sliding:
        yield TensorPlan(f"{name}.attention_sink_bias", (heads,), 1.0, mean=SINK_MEAN)


def _text(text: TextSpec) -> Iterator[TensorPlan]:
    hidden = text.hidden_size
    yield TensorPlan("model.embed_tokens.weight", (text.vocab_size, hidden), 1.0)
    yield _linear("lm_head", text.vocab_size, hidden, 3.0)
    yield _norm("model.norm", hidden)
    for i, sliding in enumerate(text.hybrid_layer_pattern):
        layer = f"model.layers.{i}"
        yield _norm(f"{layer}.input_layernorm", hidden)
        yield _norm(f"{layer}.post_attention_layernorm", hidden)
        yield from _attention(text, f"{layer}.self_attn", bool(sliding))
        if not text.moe_layer_freq[i]:
            yield from _swiglu(f"{layer}.mlp", hidden, text.intermediate_size)
            continue
        experts, gate = text.n_routed_experts, f"{layer}.mlp.gate"
        yield TensorPlan(f"{gate}.weight", (experts, hidden), hidden**-0.5, dtype="float32")
        yield TensorPlan(f"{gate}.e_score_correction_bias", (experts,), 0.1, dtype="float32")
        for e in range(experts):
            yield from _swiglu(f"{layer}.mlp.experts.{e}", hidden, text.moe_intermediate_size)


def mtp_plan(spec: PocketSpec) -> Iterator[TensorPlan]:
    """Tensors of ``model_mtp.safetensors``."""
    text = spec.text
    for i in range(text.mtp_layers):
        layer, hidden = f"model.mtp.layers.{i}", text.hidden_size
        norms = ("enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm")
        for name in norms:
            yield _norm(f"{layer}.{name}", hidden)
        yield _linear(f"{layer}.eh_proj", hidden, 2 * hidden, OUT_GAIN)
        yield from _attention(text, f"{layer}.self_attn", sliding=True)
        yield from _swiglu(f"{layer}.mlp", hidden, text.intermediate_size)


def _vision(vision: VisionSpec, out_hidden: int) -> Iterator[TensorPlan]:
    hidden, heads, width = vision.hidden_size, vision.num_heads, vision.qk_channels
    patch = (vision.in_chans, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    fan_in = patch[0] * patch[1] * patch[2] * patch[3]
    yield TensorPlan("visual.patch_embed.proj.weight", (hidden, *patch), fan_in**-0.5)
    for i, kind in enumerate(vision.vit_window_attn_types):
        block = f"visual.blocks.{i}"
        qkv = (heads + 2 * vision.num_key_value_heads) * width
        yield _norm(f"{block}.norm1", hidden)
        yield _norm(f"{block}.norm2", hidden)
        yield _linear(f"{block}.attn.qkv", qkv, hidden, QK_GAIN)
        yield _bias(f"{block}.attn.qkv", qkv)
        yield _linear(f"{block}.attn.proj", hidden, heads * width)
        yield _bias(f"{block}.attn.proj", hidden)
        if kind != -1:
            yield TensorPlan(f"{block}.attn.sinks", (heads,), 1.0, mean=SINK_MEAN)
        yield from _swiglu(f"{block}.mlp", hidden, vision.intermediate_size)
        yield _bias(f"{block}.mlp.gate_proj", vision.intermediate_size)
        yield _bias(f"{block}.mlp.up_proj", vision.intermediate_size)
        yield _bias(f"{block}.mlp.down_proj", hidden)
    merged = hidden * vision.spatial_merge_size**2
    yield _norm("visual.merger.ln_q", hidden)
    yield _linear("visual.merger.mlp.0", merged, merged)
    yield _linear("visual.merger.mlp.2", out_hidden, merged, 1.7)


def _audio_encoder(audio: AudioEncoderSpec, channels: int, out_hidden: int) -> Iterator[TensorPlan]:
    dim = audio.input_local_dim
    for c in range(channels):
        name = f"speech_embeddings.{c}.weight"
        shape = (audio.speech_vocab_size, dim)
        yield TensorPlan(name, shape, channels**-0.5, zero_row=audio.zero_row)
    prefix = "audio_encoder.input_local_transformer"
    for i in range(audio.input_local_layers):
        layer = f"{prefix}.layers.{i}"
        yield _norm(f"{layer}.input_layernorm", dim)
        yield _norm(f"{layer}.post_attention_layernorm", dim)
        for part in ("q_proj", "k_proj", "v_proj"):
            yield _linear(f"{layer}.self_attn.{part}", dim, dim, QK_GAIN)
            yield _bias(f"{layer}.self_attn.{part}", dim)
        yield _linear(f"{layer}.self_attn.o_proj", dim, dim)
        yield from _swiglu(f"{layer}.mlp", dim, audio.input_local_intermediate_size)
    yield _norm(f"{prefix}.norm", dim)
    flat = dim * audio.group_size
    yield _linear("audio_encoder.projection.mlp.0", 4 * flat, flat)
    yield _linear("audio_encoder.projection.mlp.2", out_hidden, 4 * flat, 1.7)


def main_plan(spec: PocketSpec) -> Iterator[TensorPlan]:
    """Tensors of ``model.safetensors``: language model, vision tower, audio encoder."""
    hidden = spec.text.hidden_size
    yield from _text(spec.text)
    yield from _vision(spec.vision, hidden)
    yield from _audio_encoder(spec.audio_encoder, spec.audio_tokenizer.num_quantizers, hidden)


def _affine_norm(name: str, size: int) -> Iterator[TensorPlan]:
    yield _norm(name, size)
    yield _bias(name, size)


def _conv(name: str, out: int, inp: int, kernel: int) -> TensorPlan:
    return TensorPlan(f"{name}.weight", (out, inp, kernel), (inp * kernel) ** -0.5)


def _codebook(name: str, size: int, dim: int, stage: int) -> Iterator[TensorPlan]:
    # The best of `size` random directions lies about 2.5 deviations off, so codes this long
    # bring the residual nearer instead of overshooting.
    std = 2.5 * dim**-0.5 * 0.97**stage
    yield TensorPlan(f"{name}.embed", (size, dim), std, dtype="float32")
    yield TensorPlan(f"{name}.embed_avg", (size, dim), std, dtype="float32")
    yield TensorPlan(f"{name}.cluster_size", (size,), 0.0, mean=1.0, dtype="float32")
    yield TensorPlan(f"{name}.inited", (1,), 0.0, mean=1.0, dtype="float32")


def audio_tokenizer_plan(spec: AudioTokenizerSpec) -> Iterator[TensorPlan]:
    """Tensors of ``audio_tokenizer/model.safetensors``."""
    dim, kernel = spec.d_model, spec.kernel_size
    for name, inp in (("encoder.conv1", spec.n_mels), ("encoder.conv2", dim)):
        yield _conv(name, dim, inp, kernel)
        yield _bias(name, dim)
    for i in range(spec.encoder_layers):
        layer = f"encoder.layers.{i}"
        yield from _affine_norm(f"{layer}.self_attn_layer_norm", dim)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            gain = 1.0 if part == "out_proj" else QK_GAIN
            yield _linear(f"{layer}.self_attn.{part}", dim, dim, gain)
            if part != "k_proj":
                yield _bias(f"{layer}.self_attn.{part}", dim)
        yield from _affine_norm(f"{layer}.final_layer_norm", dim)
        yield _linear(f"{layer}.fc1", spec.encoder_ffn_dim, dim)
        yield _bias(f"{layer}.fc1", spec.encoder_ffn_dim)
        yield _linear(f"{layer}.fc2", dim, spec.encoder_ffn_dim, 1.7)
        yield _bias(f"{layer}.fc2", dim)
    yield from _affine_norm("encoder.layer_norm", dim)
    yield _conv("encoder.down_sample_layer.0", dim, dim, spec.avg_pooler)
    yield from _affine_norm("encoder.down_sample_norm", dim)
    for q, size in enumerate(spec.codebook_size):
        yield from _codebook(f"encoder.quantizer.vq.layers.{q}._codebook", size, dim, q)
