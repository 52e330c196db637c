"""Dimensions of a checkpoint in the MiMo-V2.5 schema; the defaults are the pocket model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

QkvLayout = Literal["fused_qkv", "split"]


@dataclass(frozen=True)
class TextSpec:
    """Language model. ``hybrid_layer_pattern``: 0 = full attention, 1 = sliding window."""

    hidden_size: int = 192
    hybrid_layer_pattern: tuple[int, ...] = (0, 1, 1, 0, 1, 1, 1, 0)
    moe_layer_freq: tuple[int, ...] = (0, 1, 1, 1, 1, 1, 1, 1)
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    swa_num_key_value_heads: int = 4
    head_dim: int = 48
    v_head_dim: int = 32
    partial_rotary_factor: float = 0.334
    rope_theta: float = 1e6
    swa_rope_theta: float = 1e4
    sliding_window: int = 32
    attention_value_scale: float = 0.707
    intermediate_size: int = 512
    moe_intermediate_size: int = 128
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    layernorm_epsilon: float = 1e-5
    max_position_embeddings: int = 16384
    vocab_size: int = 768
    mtp_layers: int = 3
    qkv_layout: QkvLayout = "fused_qkv"

    def __post_init__(self) -> None:
        if len(self.moe_layer_freq) != self.num_hidden_layers:
            raise ValueError("moe_layer_freq and hybrid_layer_pattern differ in length")
        for groups in (self.num_key_value_heads, self.swa_num_key_value_heads):
            if self.num_attention_heads % groups:
                raise ValueError(f"{self.num_attention_heads} heads do not divide into {groups}")
        if self.swa_num_key_value_heads % self.num_key_value_heads:
            raise ValueError("window KV heads must divide into as many shards as full KV heads")
        if self.rotary_dim % 2 or not self.rotary_dim:
            raise ValueError(f"rotary dimension {self.rotary_dim} must be even and positive")

    @property
    def num_hidden_layers(self) -> int:
        return len(self.hybrid_layer_pattern)

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    def kv_heads(self, sliding: bool) -> int:
        return self.swa_num_key_value_heads if sliding else self.num_key_value_heads


@dataclass(frozen=True)
class VisionSpec:
    """Vision tower. ``vit_window_attn_types``: -1 full, 0 row window, 1 column window."""

    depth: int = 8
    hidden_size: int = 192
    num_heads: int = 6
    num_key_value_heads: int = 2
    qk_channels: int = 32
    intermediate_size: int = 448
    patch_size: int = 16
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    in_chans: int = 3
    vit_window_attn_types: tuple[int, ...] = (-1, 0, 1, -1, 0, 1, 0, -1)
    visual_token_window_size: int = 16

    def __post_init__(self) -> None:
        if len(self.vit_window_attn_types) != self.depth:
            raise ValueError("vit_window_attn_types needs one entry for each block")
        if self.num_heads % self.num_key_value_heads:
            raise ValueError("vision heads must divide into the KV heads")
        if self.qk_channels % 4:
            raise ValueError("vision head width must be a multiple of 4 (2-D rotary)")

    @property
    def fullatt_block_indexes(self) -> list[int]:
        return [i for i, kind in enumerate(self.vit_window_attn_types) if kind == -1]


@dataclass(frozen=True)
class AudioTokenizerSpec:
    """Audio tokenizer (encoder side only): mel to residual-VQ codes at 25 per second."""

    d_model: int = 128
    encoder_layers: int = 4
    encoder_attention_heads: int = 4
    encoder_ffn_dim: int = 512
    encoder_skip_layer_id: int = 2
    kernel_size: int = 3
    stride_size: int = 2
    avg_pooler: int = 2
    encoder_attn_window_size: tuple[int, int] = (16, 0)
    swa_per_block: int = 2
    codebook_size: tuple[int, ...] = (128,) * 8
    n_mels: int = 128
    sampling_rate: int = 24_000
    nfft: int = 960
    hop_length: int = 240
    max_audio_seconds: int = 300

    @property
    def num_quantizers(self) -> int:
        return len(self.codebook_size)


@dataclass(frozen=True)
class AudioEncoderSpec:
    """Codes to language-model rows. ``zero_row`` is the padding code, one past the real ones."""

    group_size: int = 4
    input_local_dim: int = 96
    input_local_layers: int = 2
    input_local_attn_heads: int = 4
    input_local_intermediate_size: int = 384
    speech_vocab_size: int = 129
    zero_row: int = 128
    rope_theta: float = 640_000.0
    audio_segment_size: int = 6000

    def __post_init__(self) -> None:
        if self.input_local_dim % self.input_local_attn_heads:
            raise ValueError("input_local_dim must divide into the heads")
        if not 0 <= self.zero_row < self.speech_vocab_size:
            raise ValueError("zero_row must be a row of the speech embedding")

    @property
    def head_dim(self) -> int:
        return self.input_local_dim // self.input_local_attn_heads


@dataclass(frozen=True)
class PocketSpec:
    """A whole checkpoint. Encoder outputs are always as wide as the language model."""

    text: TextSpec = field(default_factory=TextSpec)
    vision: VisionSpec = field(default_factory=VisionSpec)
    audio_tokenizer: AudioTokenizerSpec = field(default_factory=AudioTokenizerSpec)
    audio_encoder: AudioEncoderSpec = field(default_factory=AudioEncoderSpec)

    def __post_init__(self) -> None:
        largest = max(self.audio_tokenizer.codebook_size)
        if self.audio_encoder.speech_vocab_size < largest:
            raise ValueError("speech_vocab_size is smaller than the largest codebook")
