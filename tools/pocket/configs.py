"""The JSON configuration files of a checkpoint, as dictionaries (mimo-v2.md section 1)."""

from __future__ import annotations

from typing import Any

from tools.pocket.spec import PocketSpec, TextSpec
from tools.pocket.special_tokens import EOS, PAD, special_ids

# config.json key to special token. The video start and end ids exist in processor_config only.
TOKEN_ID_KEYS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "audio_token_id": "<|audio_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "audio_start_token_id": "<|mimo_audio_start|>",
    "audio_end_token_id": "<|mimo_audio_end|>",
}
VIDEO_ID_KEYS = {
    "video_start_token_id": "<|mimo_video_start|>",
    "video_end_token_id": "<|mimo_video_end|>",
}


def _text_fields(text: TextSpec) -> dict[str, Any]:
    return {
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "num_hidden_layers": text.num_hidden_layers,
        "num_attention_heads": text.num_attention_heads,
        "swa_num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": text.num_key_value_heads,
        "swa_num_key_value_heads": text.swa_num_key_value_heads,
        "head_dim": text.head_dim,
        "swa_head_dim": text.head_dim,
        "v_head_dim": text.v_head_dim,
        "swa_v_head_dim": text.v_head_dim,
        "partial_rotary_factor": text.partial_rotary_factor,
        "rope_theta": text.rope_theta,
        "swa_rope_theta": text.swa_rope_theta,
        "rope_scaling": {"type": "default", "rope_type": "default"},
        "max_position_embeddings": text.max_position_embeddings,
        "hybrid_layer_pattern": list(text.hybrid_layer_pattern),
        "sliding_window": text.sliding_window,
        "sliding_window_size": text.sliding_window,
        "attention_chunk_size": text.sliding_window,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "attention_value_scale": text.attention_value_scale,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_projection_layout": text.qkv_layout,
        "intermediate_size": text.intermediate_size,
        "moe_intermediate_size": text.moe_intermediate_size,
        "moe_layer_freq": list(text.moe_layer_freq),
        "n_routed_experts": text.n_routed_experts,
        "n_shared_experts": None,
        "num_experts_per_tok": text.num_experts_per_tok,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": None,
        "layernorm_epsilon": text.layernorm_epsilon,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
    }


def _vision_fields(spec: PocketSpec) -> dict[str, Any]:
    vision = spec.vision
    return {
        "depth": vision.depth,
        "hidden_size": vision.hidden_size,
        "hidden_act": "silu",
        "intermediate_size": vision.intermediate_size,
        "num_heads": vision.num_heads,
        "num_key_value_heads": vision.num_key_value_heads,
        "qk_channels": vision.qk_channels,
        "kv_channels": vision.qk_channels,
        "in_chans": vision.in_chans,
        "patch_size": vision.patch_size,
        "spatial_patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "spatial_merge_size": vision.spatial_merge_size,
        "out_hidden_size": spec.text.hidden_size,
        "fullatt_block_indexes": vision.fullatt_block_indexes,
        "vit_window_attn_types": list(vision.vit_window_attn_types),
        "visual_token_window_size": vision.visual_token_window_size,
        "window_size": 128,
        "use_sink": True,
        "tokens_per_second": 2,
    }


def _audio_fields(spec: PocketSpec) -> dict[str, Any]:
    audio = spec.audio_encoder
    return {
        "audio_channels": spec.audio_tokenizer.num_quantizers,
        "group_size": audio.group_size,
        "input_local_dim": audio.input_local_dim,
        "input_local_layers": audio.input_local_layers,
        "input_local_attn_heads": audio.input_local_attn_heads,
        "input_local_head_dim": audio.head_dim,
        "input_local_intermediate_size": audio.input_local_intermediate_size,
        "input_local_hidden_dropout": 0.0,
        "input_full_attention": True,
        "add_post_norm": True,
        "partial_rotary_factor": 1.0,
        "rope_theta": audio.rope_theta,
        "projection_layers": 2,
        "out_hidden_size": spec.text.hidden_size,
        # Strings in the family's configs; a dash-separated list would mean one value per channel.
        "speech_vocab_size": str(audio.speech_vocab_size),
        "speech_zeroemb_idx": str(audio.zero_row),
        "audio_segment_size": audio.audio_segment_size,
    }


def _processor_fields(spec: PocketSpec, ids: dict[str, int]) -> dict[str, Any]:
    audio, vision = spec.audio_tokenizer, spec.vision
    return {
        "image_min_pixels": 8_192,
        "image_max_pixels": 8_388_608,
        "video_min_pixels": 8_192,
        "video_max_pixels": 8_388_608,
        "video_total_max_pixels": 268_435_456,
        "fps": 1.0,
        "num_frames": None,
        "max_frames": 3600,
        "min_frames": None,
        "patch_size": vision.patch_size,
        "merge_size": vision.spatial_merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "temporal_compression_ratio": 1,
        "use_video_timestamps": True,
        "use_per_grid_t_timestamps": False,
        "video_audio_interleave_length": 0,
        "audio_sampling_rate": audio.sampling_rate,
        "audio_hop_length": audio.hop_length,
        "audio_window_size": audio.nfft,
        "audio_nfft": audio.nfft,
        "audio_n_mels": audio.n_mels,
        "audio_kernel_size": audio.kernel_size,
        "audio_stride_size": audio.stride_size,
        "audio_avg_pooler": audio.avg_pooler,
        "audio_channels": audio.num_quantizers,
        "audio_group_size": spec.audio_encoder.group_size,
        "audio_segment_size": spec.audio_encoder.audio_segment_size,
        "pad_token_id": ids[PAD],
        **{key: ids[token] for key, token in (TOKEN_ID_KEYS | VIDEO_ID_KEYS).items()},
    }


def model_config(spec: PocketSpec) -> dict[str, Any]:
    """``config.json``."""
    ids = special_ids(spec.text.vocab_size)
    return {
        "architectures": ["MiMoV2ForCausalLM"],
        "model_type": "mimo_v2",
        "auto_map": {"AutoConfig": "configuration_mimo_v2.MiMoV2Config"},
        "dtype": "bfloat16",
        **_text_fields(spec.text),
        "bos_token_id": None,
        "eos_token_id": ids[EOS],
        "pad_token_id": ids[PAD],
        **{key: ids[token] for key, token in TOKEN_ID_KEYS.items()},
        "vision_config": _vision_fields(spec),
        "audio_config": _audio_fields(spec),
        "processor_config": _processor_fields(spec, ids),
    }


def audio_tokenizer_config(spec: PocketSpec) -> dict[str, Any]:
    """``audio_tokenizer/config.json``. Only the encoder side exists in the checkpoint."""
    audio = spec.audio_tokenizer
    return {
        "model_type": "mimo_audio_tokenizer",
        "d_model": audio.d_model,
        "encoder_layers": audio.encoder_layers,
        "encoder_attention_heads": audio.encoder_attention_heads,
        "encoder_ffn_dim": audio.encoder_ffn_dim,
        "encoder_skip_layer_id": audio.encoder_skip_layer_id,
        "encoder_causal": True,
        "encoder_attn_window_size": list(audio.encoder_attn_window_size),
        "hybrid_attention": True,
        "swa_per_block": audio.swa_per_block,
        "kernel_size": audio.kernel_size,
        "stride_size": audio.stride_size,
        "avg_pooler": audio.avg_pooler,
        "activation_function": "gelu",
        "ln_type": "LayerNorm",
        "position_embedding_type": "rope",
        "rope_theta": 10_000,
        "rope_type": "default",
        "scale_embedding": False,
        "max_audio_seconds": audio.max_audio_seconds,
        "num_quantizers": audio.num_quantizers,
        "codebook_size": list(audio.codebook_size),
        "n_mels": audio.n_mels,
        "sampling_rate": audio.sampling_rate,
        "nfft": audio.nfft,
        "window_size": audio.nfft,
        "hop_length": audio.hop_length,
        "fmin": 0,
        "fmax": None,
    }


def preprocessor_config(spec: PocketSpec) -> dict[str, Any]:
    """``preprocessor_config.json``, with the Qwen names the family's own file carries."""
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "patch_size": spec.vision.patch_size,
        "temporal_patch_size": spec.vision.temporal_patch_size,
        "merge_size": spec.vision.spatial_merge_size,
        "min_pixels": 8_192,
        "max_pixels": 8_388_608,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }


def generation_config(spec: PocketSpec) -> dict[str, Any]:
    """``generation_config.json``. Cooler than the family's 1.0: a small model's tails are noise."""
    ids = special_ids(spec.text.vocab_size)
    return {
        "eos_token_id": [ids[EOS], ids[PAD]],
        "pad_token_id": ids[PAD],
        "do_sample": True,
        "temperature": 0.1,
        "top_p": 0.95,
    }
