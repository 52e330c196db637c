"""Checkpoint geometries for tests: one that writes in a second, and the real V2.5."""

from __future__ import annotations

from tools.pocket.spec import (
    AudioEncoderSpec,
    AudioTokenizerSpec,
    PocketSpec,
    TextSpec,
    VisionSpec,
)


def tiny() -> PocketSpec:
    return PocketSpec(
        text=TextSpec(
            hidden_size=32,
            hybrid_layer_pattern=(0, 1, 0),
            moe_layer_freq=(0, 1, 1),
            num_attention_heads=4,
            num_key_value_heads=2,
            swa_num_key_value_heads=4,
            head_dim=12,
            v_head_dim=8,
            sliding_window=4,
            intermediate_size=48,
            moe_intermediate_size=16,
            n_routed_experts=4,
            vocab_size=320,
            max_position_embeddings=512,
            mtp_layers=2,
        ),
        vision=VisionSpec(
            depth=3,
            hidden_size=32,
            num_heads=4,
            num_key_value_heads=2,
            qk_channels=8,
            intermediate_size=40,
            vit_window_attn_types=(-1, 0, 1),
        ),
        audio_tokenizer=AudioTokenizerSpec(
            d_model=16, encoder_layers=2, encoder_ffn_dim=32, codebook_size=(8, 8, 4)
        ),
        audio_encoder=AudioEncoderSpec(
            input_local_dim=16,
            input_local_layers=1,
            input_local_intermediate_size=24,
            speech_vocab_size=9,
            zero_row=8,
        ),
    )


def mimo_v2_5() -> PocketSpec:
    full = {0, 5, 11, 17, 23, 29, 35, 41, 47}
    return PocketSpec(
        text=TextSpec(
            hidden_size=4096,
            hybrid_layer_pattern=tuple(int(i not in full) for i in range(48)),
            moe_layer_freq=(0,) + (1,) * 47,
            num_attention_heads=64,
            num_key_value_heads=4,
            swa_num_key_value_heads=8,
            head_dim=192,
            v_head_dim=128,
            rope_theta=1e7,
            sliding_window=128,
            intermediate_size=16384,
            moe_intermediate_size=2048,
            n_routed_experts=256,
            num_experts_per_tok=8,
            max_position_embeddings=1_048_576,
            vocab_size=152_576,
        ),
        vision=VisionSpec(
            depth=28,
            hidden_size=1280,
            num_heads=32,
            num_key_value_heads=8,
            qk_channels=64,
            intermediate_size=4608,
            vit_window_attn_types=(-1, 0, 0, 0, 0, 1, 1, 1, 1) * 3 + (-1,),
            visual_token_window_size=64,
        ),
        audio_tokenizer=AudioTokenizerSpec(
            d_model=1024,
            encoder_layers=24,
            encoder_attention_heads=16,
            encoder_ffn_dim=4096,
            encoder_skip_layer_id=3,
            encoder_attn_window_size=(128, 0),
            codebook_size=(1024, 1024, 256) + (128,) * 17,
        ),
        audio_encoder=AudioEncoderSpec(
            input_local_dim=1024,
            input_local_layers=6,
            input_local_attn_heads=16,
            input_local_intermediate_size=4096,
            speech_vocab_size=1280,
            zero_row=1024,
        ),
    )
