"""Loading: names, aliases, types, and errors that say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from audio_tiny import TOKENIZER, write_checkpoint
from safetensors.torch import load_file, save_file

from encoders.audio import load_audio_model
from encoders.audio.config import EncoderConfig, TokenizerConfig
from encoders.checkpoint import CheckpointError


def rows_of(folder: Path) -> torch.Tensor:
    mel = torch.randn(70, 128, generator=torch.Generator().manual_seed(0))
    return load_audio_model(folder, "cpu", "float64").encode([mel])[0]


@pytest.mark.parametrize(
    "rename",
    [
        {"audio_encoder.projection": "audio_projection"},
        {"audio_encoder.projection": "audio_encoder.speech_group_downcast"},
        {"audio_encoder.projection": "projection"},
        {"audio_encoder.input_local_transformer": "audio_encoder.audio_input_local_transformer"},
        {"audio_encoder.input_local_transformer": "audio_input_local_transformer"},
    ],
    ids=lambda r: next(iter(r.values())),
)
def test_aliases_load_the_same(tiny_audio: Path, tmp_path: Path, rename: dict[str, str]) -> None:
    assert torch.equal(rows_of(write_checkpoint(tmp_path, rename=rename)), rows_of(tiny_audio))


def test_one_layer_projection(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, encoder={"projection_layers": 1})
    main = load_file(tmp_path / "model.safetensors")
    main["audio_encoder.projection.weight"] = torch.ones(20, 64)
    save_file(main, tmp_path / "model.safetensors")
    assert rows_of(tmp_path).shape == (5, 20)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types(tiny_audio: Path, dtype: torch.dtype) -> None:
    model = load_audio_model(tiny_audio, "cpu", dtype)
    (rows,) = model.encode([torch.randn(70, 128)])
    assert rows.dtype == dtype
    assert torch.isfinite(rows).all()
    books = [book.embed for book in model.tokenizer.quantizer.codebooks]
    assert {book.dtype for book in books} == {torch.float32}
    assert all(torch.equal(book, book.to(dtype).float()) for book in books)


def test_low_precision_stays_near(tiny_audio: Path) -> None:
    """Most first-stage codes agree between bfloat16 and float32."""
    mel = torch.randn(400, 128, generator=torch.Generator().manual_seed(4))
    low, full = (
        load_audio_model(tiny_audio, "cpu", dtype).tokenizer(mel, [400])
        for dtype in ("bfloat16", "float32")
    )
    assert (low[:, 0] == full[:, 0]).float().mean() > 0.9


def edit(path: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(path)
    for name, tensor in change.items():
        del tensors[name]
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, path)


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    layer = "encoder.layers.1.fc1.weight"
    edit(tmp_path / "audio_tokenizer/model.safetensors", {layer: torch.zeros(40, 32)})
    with pytest.raises(CheckpointError, match=r"fc1\.weight has shape \[40, 32\], expected \[48, "):
        load_audio_model(tmp_path)
    write_checkpoint(tmp_path)
    edit(tmp_path / "model.safetensors", {"speech_embeddings.2.weight": None})
    with pytest.raises(CheckpointError, match=r"speech_embeddings\.2\.weight is missing"):
        load_audio_model(tmp_path)
    write_checkpoint(tmp_path)
    codebook = "encoder.quantizer.vq.layers.3._codebook.embed"
    edit(tmp_path / "audio_tokenizer/model.safetensors", {codebook: None})
    with pytest.raises(CheckpointError, match=r"layers\.3\._codebook\.embed is missing"):
        load_audio_model(tmp_path)


def test_missing_files_and_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_audio_model(tmp_path)
    write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="audio_config is missing"):
        load_audio_model(tmp_path)
    write_checkpoint(tmp_path)
    (tmp_path / "audio_tokenizer/config.json").write_text(json.dumps({"num_quantizers": 4}))
    with pytest.raises(CheckpointError, match="key d_model is missing"):
        load_audio_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "relu"}, "activation_function is 'relu', supported is 'gelu'"),
        ({"scale_embedding": True}, "scale_embedding is True"),
        ({"d_model": 30, "encoder_attention_heads": 2}, "not an even head size"),
        ({"encoder_skip_layer_id": 5}, r"encoder_skip_layer_id 5 is not in 1\.\.4"),
        ({"window_size": 1024}, "window_size 1024 exceeds nfft 960"),
    ],
)
def test_unsupported_tokenizers_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        TokenizerConfig.from_dict(TOKENIZER | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"projection_layers": 3}, "projection_layers is 3"),
        ({"speech_vocab_size": "26-26"}, "speech_vocab_size '26-26' is not one or 4 integers"),
        ({"speech_vocab_size": "20"}, "speech_vocab_size of channel 0 is 20, its codebook has 24"),
        ({"audio_channels": 6}, "audio_channels is 6, the tokenizer has 5 quantizers"),
        ({"partial_rotary_factor": 0.2}, "rotary size 1 is odd"),
    ],
)
def test_unsupported_encoders_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["audio_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        load_audio_model(tmp_path)


def test_published_configuration_reads() -> None:
    """The values of the published model (codebook list, per-channel strings)."""
    sizes = [1024, 1024, 256] + [128] * 17
    tokenizer = TokenizerConfig.from_dict(
        TOKENIZER | {"num_quantizers": 20, "codebook_size": sizes, "fmax": None}
    )
    assert tokenizer.codebooks == tuple(sizes)
    assert tokenizer.f_max == 12_000
    raw = {
        "audio_channels": 3,
        "input_local_dim": 1024,
        "input_local_attn_heads": 16,
        "input_local_layers": 6,
        "input_local_intermediate_size": 4096,
        "out_hidden_size": 4096,
        "speech_vocab_size": "1025-1025-129",
        "speech_zeroemb_idx": "1024",
    }
    encoder = EncoderConfig.from_dict(raw)
    assert encoder.vocabularies == (1025, 1025, 129)
    assert encoder.zero_ids == (1024, 1024, 1024)
    assert encoder.head_dim == encoder.rotary_dim == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"atention": "causal_local"}, "'atention' is unknown; known: attention, batch_frames"),
        ({"attention": "full"}, "'full' is not one of"),
        ({"batch_frames": 0}, "batch_frames: 0"),
        ({"max_seconds": -1}, "max_seconds: -1"),
    ],
)
def test_options_are_checked(tiny_audio: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_audio_model(tiny_audio, "cpu", "float32", options)
