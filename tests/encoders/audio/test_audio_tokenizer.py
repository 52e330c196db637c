"""The tokenizer against a plain per-segment reference, and its independence of batch mates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from audio_reference import nearest_codes, segment_latents
from audio_tiny import TOKENIZER, tokenizer_tensors, write_checkpoint

from encoders.audio import load_audio_model
from encoders.audio.config import Span, TokenizerConfig
from encoders.audio.options import AttentionForm

WEIGHTS = tokenizer_tensors(TOKENIZER)
SEGMENTS = [250, 250, 101, 37, 36, 35, 34, 33, 4, 3, 2, 1]


def mel_of(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(frames, 128, generator=torch.Generator().manual_seed(seed + frames))


def test_spans_follow_the_configuration() -> None:
    config = TokenizerConfig.from_dict(TOKENIZER)
    causal = [config.span(layer, "causal_local") for layer in range(4)]
    assert causal == [Span(16, 0), Span(None, 0)] * 2
    assert {config.span(layer, "bidirectional") for layer in range(4)} == {Span(None, None)}
    plain = TokenizerConfig.from_dict(TOKENIZER | {"hybrid_attention": False})
    assert {plain.span(layer, "causal_local") for layer in range(4)} == {Span(16, 0)}
    older = {"encoder_causal": False, "encoder_attn_window_size": [-1, -1]}
    both_ways = TokenizerConfig.from_dict(TOKENIZER | older)
    assert both_ways.span(0, "causal_local") == Span(None, None)


@pytest.mark.parametrize(
    ("form", "spans"),
    [
        ("causal_local", [Span(16, 0), Span(None, 0)] * 2),
        ("bidirectional", [Span(None, None)] * 4),
    ],
)
def test_packed_segments_equal_the_plain_reference(
    tiny_audio: Path, form: AttentionForm, spans: list[Span]
) -> None:
    model = load_audio_model(tiny_audio, "cpu", "float64", {"attention": form})
    mels = [mel_of(frames, seed) for seed, frames in enumerate(SEGMENTS)]
    counts = [model.lengths.codes(frames) for frames in SEGMENTS]
    found = model.tokenizer.latents(torch.cat(mels), SEGMENTS).split(counts)
    codes = model.tokenizer(torch.cat(mels), SEGMENTS).split(counts)
    books = [WEIGHTS[f"encoder.quantizer.vq.layers.{q}._codebook.embed"] for q in range(4)]
    for mel, latents, chosen in zip(mels, found, codes, strict=True):
        expected = segment_latents(mel, WEIGHTS, TOKENIZER, spans)
        assert torch.allclose(latents, expected, atol=1e-9)
        if mel.shape[0] < 60:
            assert torch.equal(chosen, nearest_codes(expected, [b.double() for b in books]))


def test_the_two_attention_forms_differ(tiny_audio: Path) -> None:
    mel = mel_of(200)
    one, other = (
        load_audio_model(tiny_audio, "cpu", "float64", {"attention": form}).tokenizer
        for form in ("causal_local", "bidirectional")
    )
    assert not torch.allclose(one.latents(mel, [200]), other.latents(mel, [200]), atol=1e-2)


def test_causal_codes_do_not_depend_on_what_follows(tiny_audio: Path) -> None:
    """All but the last codes, whose pooling and stride reach over the cut."""
    tokenizer = load_audio_model(tiny_audio, "cpu", "float64").tokenizer
    mel = mel_of(200)
    whole, cut = tokenizer(mel, [200]), tokenizer(mel[:120], [120])
    assert torch.equal(whole[:29], cut[:29])


@pytest.mark.parametrize("odd", ["lengths", "window", "kernel", "pooler"])
def test_other_geometries(tmp_path: Path, odd: str) -> None:
    changes = {
        "lengths": {"encoder_layers": 3, "encoder_skip_layer_id": 1, "d_model": 24},
        "window": {"encoder_causal": False, "encoder_attn_window_size": [5, 3]},
        "kernel": {"kernel_size": 2, "stride_size": 2},
        "pooler": {"avg_pooler": 3},
    }[odd]
    config = TOKENIZER | changes
    model = load_audio_model(write_checkpoint(tmp_path, tokenizer=changes), "cpu", "float64")
    mels = [mel_of(frames) for frames in (77, 30, 9)]
    counts = [model.lengths.codes(mel.shape[0]) for mel in mels]
    found = model.tokenizer.latents(torch.cat(mels), [77, 30, 9]).split(counts)
    spans = model.tokenizer.spans
    for mel, latents in zip(mels, found, strict=True):
        expected = segment_latents(mel, tokenizer_tensors(config), config, spans)
        assert torch.allclose(latents, expected, atol=1e-9)


def test_latents_carry_gradients(tiny_audio: Path) -> None:
    tokenizer = load_audio_model(tiny_audio, "cpu", "float32").tokenizer.requires_grad_(True)
    tokenizer.latents(mel_of(50), [30, 20]).square().sum().backward()
    assert tokenizer.conv1.weight.grad is not None
    assert tokenizer.conv1.weight.grad.abs().sum() > 0
