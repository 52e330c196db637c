"""Codes to rows: the group transformer against transformers' Qwen2, sums, groups, projection.

Tolerances are float32's: Qwen2 normalises and rotates in float32 whatever the model's type.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from audio_tiny import ENCODER, encoder_tensors, write_checkpoint
from transformers import Qwen2Config, Qwen2Model

from encoders.audio import load_audio_model
from encoders.audio.encoder import group_codes


def qwen2(post_norm: bool = True) -> Qwen2Model:
    """transformers' Qwen2 trunk with the small checkpoint's group transformer in it."""
    config = Qwen2Config(
        vocab_size=2,
        hidden_size=ENCODER["input_local_dim"],
        num_hidden_layers=ENCODER["input_local_layers"],
        num_attention_heads=ENCODER["input_local_attn_heads"],
        num_key_value_heads=ENCODER["input_local_attn_heads"],
        intermediate_size=ENCODER["input_local_intermediate_size"],
        rope_parameters={"rope_type": "default", "rope_theta": ENCODER["rope_theta"]},
        rms_norm_eps=1e-6,
    )
    model = Qwen2Model(config).double().eval()
    prefix = "audio_encoder.input_local_transformer."
    weights = {
        name.removeprefix(prefix): tensor.double()
        for name, tensor in encoder_tensors(ENCODER).items()
        if name.startswith(prefix)
    }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == ["embed_tokens.weight"]
    assert unexpected == []
    if not post_norm:
        model.norm = torch.nn.Identity()
    return model


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("post_norm", [True, False])
def test_group_transformer_equals_qwen2(tmp_path: Path, full: bool, post_norm: bool) -> None:
    change = {"input_full_attention": full, "add_post_norm": post_norm}
    encoder = load_audio_model(write_checkpoint(tmp_path, encoder=change), "cpu", "float64").encoder
    x = torch.randn(9, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = torch.zeros(4, 4) if full else torch.full((4, 4), -torch.inf).triu(1)
    mask = hidden.double().expand(9, 1, 4, 4)
    with torch.no_grad():
        expected = qwen2(post_norm)(inputs_embeds=x, attention_mask=mask).last_hidden_state
    assert torch.allclose(encoder.input_local_transformer(x), expected, atol=1e-5)


def test_rows_are_the_projected_groups(tiny_audio: Path) -> None:
    model = load_audio_model(tiny_audio, "cpu", "float64")
    weights = {name: tensor.double() for name, tensor in encoder_tensors(ENCODER).items()}
    codes = torch.randint(0, 12, (3, 4, 4), generator=torch.Generator().manual_seed(0))
    embedded = sum(weights[f"speech_embeddings.{c}.weight"][codes[..., c]] for c in range(4))
    assert isinstance(embedded, torch.Tensor)
    assert torch.allclose(model.embeddings(codes), embedded)
    with torch.no_grad():
        mask = torch.zeros(3, 1, 4, 4, dtype=torch.float64)
        hidden = qwen2()(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
    inner = torch.nn.functional.gelu(
        hidden.flatten(1) @ weights["audio_encoder.projection.mlp.0.weight"].T
    )
    expected = inner @ weights["audio_encoder.projection.mlp.2.weight"].T
    assert torch.allclose(model.encoder(model.embeddings(codes)), expected, atol=1e-5)


def test_the_zero_row_reads_as_zero(tiny_audio: Path) -> None:
    model = load_audio_model(tiny_audio, "cpu", "float32")
    assert model.embeddings(torch.full((1, 4), 25)).abs().sum() == 0
    assert model.embeddings(torch.full((1, 4), 24)).abs().sum() > 0


def test_groups_repeat_the_last_frame() -> None:
    codes = torch.arange(6)[:, None]
    assert group_codes(codes, 4)[..., 0].tolist() == [[0, 1, 2, 3], [4, 5, 5, 5]]
    assert group_codes(codes[:4], 4)[..., 0].tolist() == [[0, 1, 2, 3]]
