"""The tensor plan against the published census of V2.5 (mimo-v2.md section 8.1)."""

from __future__ import annotations

import math
import re

import pytest

from tests.tools.geometries import mimo_v2_5
from tools.pocket.layout import TensorPlan, audio_tokenizer_plan, main_plan, mtp_plan
from tools.pocket.spec import AudioEncoderSpec, PocketSpec, TextSpec, VisionSpec

SMALL_CODES = AudioEncoderSpec(speech_vocab_size=64, zero_row=63)
FP8 = re.compile(r"^model\.(?!.*o_proj).*(qkv_proj|gate_proj|up_proj|down_proj)\.weight$")


def scale_values(plan: TensorPlan, shards: int) -> int:
    """Number of 128x128 block scales; they restart at each shard of a fused projection."""
    rows, columns = plan.shape
    parts = shards if "qkv_proj" in plan.name else 1
    return parts * math.ceil(rows / parts / 128) * math.ceil(columns / 128)


def test_v2_5_dimensions_give_the_published_tensor_and_element_counts() -> None:
    spec = mimo_v2_5()
    plans = [*main_plan(spec), *mtp_plan(spec)]
    scaled = [plan for plan in plans if FP8.match(plan.name)]
    assert len(plans) + len(scaled) == 73_081
    elements = sum(math.prod(plan.shape) for plan in plans)
    scales = sum(scale_values(plan, shards=4) for plan in scaled)
    assert elements + scales == 310_775_040_000


def test_v2_5_dimensions_give_the_published_file_sizes() -> None:
    spec = mimo_v2_5()
    mtp = list(mtp_plan(spec))
    scaled = [plan for plan in mtp if FP8.match(plan.name)]
    size = sum(math.prod(plan.shape) * (1 if plan in scaled else 2) for plan in mtp)
    size += 4 * sum(scale_values(plan, shards=4) for plan in scaled)
    assert 0 < 1_189_405_960 - size < 10_000  # the rest is the safetensors header
    audio = audio_tokenizer_plan(spec.audio_tokenizer)
    width = {"bfloat16": 2, "float32": 4}
    assert 0 < 652_622_472 - sum(math.prod(p.shape) * width[p.dtype] for p in audio) < 100_000


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("model.embed_tokens.weight", (152576, 4096), "bfloat16"),
        ("model.layers.0.self_attn.qkv_proj.weight", (13568, 4096), "bfloat16"),
        ("model.layers.1.self_attn.qkv_proj.weight", (14848, 4096), "bfloat16"),
        ("model.layers.1.self_attn.o_proj.weight", (4096, 8192), "bfloat16"),
        ("model.layers.1.self_attn.attention_sink_bias", (64,), "bfloat16"),
        ("model.layers.0.mlp.down_proj.weight", (4096, 16384), "bfloat16"),
        ("model.layers.47.mlp.gate.weight", (256, 4096), "float32"),
        ("model.layers.47.mlp.gate.e_score_correction_bias", (256,), "float32"),
        ("model.layers.47.mlp.experts.255.down_proj.weight", (4096, 2048), "bfloat16"),
        ("model.mtp.layers.2.eh_proj.weight", (4096, 8192), "bfloat16"),
        ("model.mtp.layers.2.self_attn.qkv_proj.weight", (14848, 4096), "bfloat16"),
        ("model.mtp.layers.0.pre_mlp_layernorm.weight", (4096,), "bfloat16"),
        ("visual.patch_embed.proj.weight", (1280, 3, 2, 16, 16), "bfloat16"),
        ("visual.blocks.27.attn.qkv.weight", (3072, 1280), "bfloat16"),
        ("visual.blocks.27.attn.proj.weight", (1280, 2048), "bfloat16"),
        ("visual.blocks.1.attn.sinks", (32,), "bfloat16"),
        ("visual.merger.mlp.2.weight", (4096, 5120), "bfloat16"),
        ("audio_encoder.projection.mlp.0.weight", (16384, 4096), "bfloat16"),
        ("speech_embeddings.19.weight", (1280, 1024), "bfloat16"),
    ],
)
def test_v2_5_names_shapes_dtypes(name: str, shape: tuple[int, ...], dtype: str) -> None:
    spec = mimo_v2_5()
    plans = {plan.name: plan for plan in [*main_plan(spec), *mtp_plan(spec)]}
    assert (plans[name].shape, plans[name].dtype) == (shape, dtype)


def test_counts_per_encoder() -> None:
    spec = mimo_v2_5()
    names = [plan.name for plan in main_plan(spec)]
    assert sum(name.startswith("visual.") for name in names) == 364
    assert sum(name.startswith("audio_encoder.") for name in names) == 75
    assert sum(name.startswith("speech_embeddings.") for name in names) == 20
    audio = {plan.name: plan for plan in audio_tokenizer_plan(spec.audio_tokenizer)}
    unused = ("embed_avg", "cluster_size", "inited")
    assert sum(not name.endswith(unused) for name in audio) == 389
    assert audio["encoder.down_sample_layer.0.weight"].shape == (1024, 1024, 2)
    assert audio["encoder.quantizer.vq.layers.2._codebook.embed"].shape == (256, 1024)
    assert "encoder.layers.0.self_attn.k_proj.bias" not in audio


def test_only_window_layers_and_window_blocks_have_sinks() -> None:
    spec = PocketSpec()
    names = [plan.name for plan in [*main_plan(spec), *mtp_plan(spec)]]
    sinks = {name for name in names if "sink" in name}
    assert sinks == {
        *(f"model.layers.{i}.self_attn.attention_sink_bias" for i in (1, 2, 4, 5, 6)),
        *(f"model.mtp.layers.{i}.self_attn.attention_sink_bias" for i in range(3)),
        *(f"visual.blocks.{i}.attn.sinks" for i in (1, 2, 4, 5, 6)),
    }


def test_split_layout_names_three_projections() -> None:
    names = {p.name for p in main_plan(PocketSpec(text=TextSpec(qkv_layout="split")))}
    assert {f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv"} <= names
    assert not any("qkv_proj" in name for name in names)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (TextSpec, {"moe_layer_freq": (0, 1)}, "differ in length"),
        (TextSpec, {"num_key_value_heads": 3}, "do not divide"),
        (TextSpec, {"num_key_value_heads": 8, "swa_num_key_value_heads": 4}, "shards"),
        (TextSpec, {"partial_rotary_factor": 0.32}, "rotary dimension 15"),
        (VisionSpec, {"depth": 7}, "one entry for each block"),
        (VisionSpec, {"num_heads": 5}, "KV heads"),
        (VisionSpec, {"qk_channels": 30}, "multiple of 4"),
        (AudioEncoderSpec, {"input_local_dim": 98}, "divide"),
        (AudioEncoderSpec, {"zero_row": 129}, "row of the speech embedding"),
        (PocketSpec, {"audio_encoder": SMALL_CODES}, "smaller than the largest codebook"),
    ],
)
def test_impossible_geometries_are_refused(
    kind: type, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)
