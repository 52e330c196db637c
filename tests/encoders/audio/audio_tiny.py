"""A small random checkpoint of the audio path, written with the family's tensor names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

TOKENIZER: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 4,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "encoder_skip_layer_id": 3,
    "encoder_causal": True,
    "encoder_attn_window_size": [16, 0],
    "hybrid_attention": True,
    "swa_per_block": 2,
    "kernel_size": 3,
    "stride_size": 2,
    "avg_pooler": 2,
    "rope_theta": 10000,
    "num_quantizers": 5,
    "codebook_size": [24, 24, 12],
    "n_mels": 128,
    "sampling_rate": 24000,
    "nfft": 960,
    "window_size": 960,
    "hop_length": 240,
    "fmin": 0,
    "fmax": None,
    "activation_function": "gelu",
    "ln_type": "LayerNorm",
    "scale_embedding": False,
}
ENCODER: dict[str, Any] = {
    "audio_channels": 4,
    "group_size": 4,
    "input_local_dim": 16,
    "input_local_layers": 2,
    "input_local_attn_heads": 2,
    "input_local_head_dim": 8,
    "input_local_intermediate_size": 24,
    "input_full_attention": True,
    "add_post_norm": True,
    "partial_rotary_factor": 1.0,
    "rope_theta": 640000,
    "projection_layers": 2,
    "out_hidden_size": 20,
    "speech_vocab_size": "26",
    "speech_zeroemb_idx": "25",
    "audio_segment_size": 6000,
}
Tensors = dict[str, torch.Tensor]


def _random(shapes: dict[str, tuple[int, ...]], seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            tensors[name] = 1 + 0.2 * values
        elif len(shape) > 1 and "embed" not in name:
            tensors[name] = values / torch.tensor(shape[1:]).prod().sqrt()
        else:
            tensors[name] = 0.5 * values
    return tensors


def tokenizer_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    d, ffn, kernel = config["d_model"], config["encoder_ffn_dim"], config["kernel_size"]
    pooler = config["avg_pooler"]
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (d, config["n_mels"], kernel),
        "encoder.conv1.bias": (d,),
        "encoder.conv2.weight": (d, d, kernel),
        "encoder.conv2.bias": (d,),
        "encoder.down_sample_layer.0.weight": (d, d, pooler),
        "decoder.unused.weight": (2, 2),
    }
    norms = ["encoder.layer_norm", "encoder.down_sample_norm"]
    for layer in range(config["encoder_layers"]):
        at = f"encoder.layers.{layer}"
        norms += [f"{at}.self_attn_layer_norm", f"{at}.final_layer_norm"]
        for part in ("q", "k", "v", "out"):
            shapes[f"{at}.self_attn.{part}_proj.weight"] = (d, d)
            if part != "k":
                shapes[f"{at}.self_attn.{part}_proj.bias"] = (d,)
        shapes |= {f"{at}.fc1.weight": (ffn, d), f"{at}.fc1.bias": (ffn,)}
        shapes |= {f"{at}.fc2.weight": (d, ffn), f"{at}.fc2.bias": (d,)}
    for norm in norms:
        shapes |= {f"{norm}.weight": (d,), f"{norm}.bias": (d,)}
    sizes = config["codebook_size"]
    for stage in range(config["num_quantizers"]):
        at = f"encoder.quantizer.vq.layers.{stage}._codebook"
        codes = sizes[min(stage, len(sizes) - 1)]
        shapes |= {f"{at}.embed": (codes, d), f"{at}.embed_avg": (codes, d)}
        shapes |= {f"{at}.cluster_size": (codes,), f"{at}.inited": (1,)}
    return _random(shapes, seed)


def encoder_tensors(config: dict[str, Any], seed: int = 1) -> Tensors:
    dim, ffn = config["input_local_dim"], config["input_local_intermediate_size"]
    width = config["input_local_attn_heads"] * config["input_local_head_dim"]
    joined = dim * config["group_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "audio_encoder.input_local_transformer.norm.weight": (dim,)
    }
    for layer in range(config["input_local_layers"]):
        at = f"audio_encoder.input_local_transformer.layers.{layer}"
        for part in "qkv":
            shapes[f"{at}.self_attn.{part}_proj.weight"] = (width, dim)
            shapes[f"{at}.self_attn.{part}_proj.bias"] = (width,)
        shapes[f"{at}.self_attn.o_proj.weight"] = (dim, width)
        shapes |= {f"{at}.mlp.{part}_proj.weight": (ffn, dim) for part in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (dim, ffn)
        shapes[f"{at}.input_layernorm.weight"] = (dim,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (dim,)
    shapes["audio_encoder.projection.mlp.0.weight"] = (4 * joined, joined)
    shapes["audio_encoder.projection.mlp.2.weight"] = (config["out_hidden_size"], 4 * joined)
    for channel in range(config["audio_channels"]):
        rows = int(config["speech_vocab_size"])
        shapes[f"speech_embeddings.{channel}.weight"] = (rows, dim)
    return _random(shapes, seed)


def write_checkpoint(
    folder: Path,
    tokenizer: dict[str, Any] | None = None,
    encoder: dict[str, Any] | None = None,
    rename: dict[str, str] | None = None,
) -> Path:
    """Write the directory; `tokenizer` and `encoder` override configuration values."""
    token_config, code_config = TOKENIZER | (tokenizer or {}), ENCODER | (encoder or {})
    (folder / "audio_tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"audio_config": code_config}))
    (folder / "audio_tokenizer/config.json").write_text(json.dumps(token_config))
    main = encoder_tensors(code_config)
    for ours, other in (rename or {}).items():
        main = {name.replace(ours, other): tensor for name, tensor in main.items()}
    save_file(main, folder / "model.safetensors")
    save_file(tokenizer_tensors(token_config), folder / "audio_tokenizer/model.safetensors")
    return folder
