"""Builds an `AudioModel` from a checkpoint directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from encoders.audio.config import EncoderConfig, TokenizerConfig, sound_lengths
from encoders.audio.encoder import CodeEncoder, SpeechEmbeddings
from encoders.audio.model import AudioModel
from encoders.audio.options import AudioOptions
from encoders.audio.tokenizer import AudioTokenizer
from encoders.checkpoint import Checkpoint, CheckpointError, load_module, read_config

_PREFIX = "audio_encoder."
# Further names that checkpoints use for a part, with or without the prefix.
_ALIASES = (
    ("projection", "audio_projection"),
    ("projection", "speech_group_downcast"),
    ("input_local_transformer", "audio_input_local_transformer"),
)


def load_audio_model(
    checkpoint_dir: str | Path,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = torch.float32,
    options: Mapping[str, Any] | AudioOptions | None = None,
) -> AudioModel:
    """Load `audio_tokenizer/` and the `audio_encoder.*`, `speech_embeddings.*` tensors.

    `dtype` is a floating point type or its name. Codebooks are rounded to it like every weight
    (so does the published code) and then kept in float32. Raises `CheckpointError` for a missing
    file, key or tensor or a wrong shape, `ValueError` for an unknown or impossible option.
    """
    root = Path(checkpoint_dir)
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    assert isinstance(dtype, torch.dtype)
    if not isinstance(options, AudioOptions):
        options = AudioOptions.from_mapping(options)
    raw = read_config(root / "config.json").get("audio_config")
    if not isinstance(raw, dict):
        raise CheckpointError(f"{root / 'config.json'}: key audio_config is missing")
    config = EncoderConfig.from_dict(raw)
    tokenizer_config = TokenizerConfig.from_dict(read_config(root / "audio_tokenizer/config.json"))
    config.check_codebooks(tokenizer_config.codebooks)

    with torch.device("meta"):
        tokenizer = AudioTokenizer(
            tokenizer_config,
            sound_lengths(tokenizer_config, config),
            stages=config.channels,
            attention=options.attention,
        )
        embeddings = SpeechEmbeddings(config)
        encoder = CodeEncoder(config)
    checkpoint = Checkpoint(root / "audio_tokenizer")
    load_module(tokenizer, checkpoint, prefix="encoder.", device=device, dtype=dtype)
    tokenizer.quantizer.to(torch.promote_types(dtype, torch.float32))
    checkpoint = Checkpoint(root)
    load_module(
        encoder, checkpoint, prefix=_PREFIX, device=device, dtype=dtype, aliases=other_names
    )
    load_module(embeddings, checkpoint, prefix="speech_embeddings.", device=device, dtype=dtype)
    embeddings.clear_zero_rows()
    return AudioModel(tokenizer, embeddings, encoder, config, options)


def other_names(name: str) -> list[str]:
    """Names besides `name` ("audio_encoder." + part) under which a tensor may be stored."""
    bare = name.removeprefix(_PREFIX)
    swapped = [bare.replace(ours, other, 1) for ours, other in _ALIASES if bare.startswith(ours)]
    return [bare, *(prefix + other for other in swapped for prefix in ("", _PREFIX))]
