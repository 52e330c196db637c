"""Trained towers out of their state files: as modules to train on, and as checkpoint tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from encoders.audio.tokenizer import AudioTokenizer
from encoders.vision.tower import VisionTower
from tools.pocket.spec import PocketSpec
from tools.pocket.train.audio_model import AudioTrainer
from tools.pocket.train.vision_model import VisionTrainer


def _read(state: Path, trainer: nn.Module) -> None:
    value: dict[str, Any] = torch.load(state, map_location="cpu", weights_only=True, mmap=True)
    trainer.load_state_dict(value["model"])


def load_vision_trainer(state: Path, spec: PocketSpec | None = None) -> VisionTrainer:
    """Tower and label heads as they stand in a state file of ``tools.pocket.train.vision``.

    ``trainer.tower`` is the tower; ``trainer.losses(items)`` keeps its labels in training.
    """
    trainer = VisionTrainer(spec or PocketSpec())
    _read(state, trainer)
    return trainer


def load_audio_trainer(state: Path, spec: PocketSpec | None = None) -> AudioTrainer:
    """Tokenizer, codebooks and training heads of a state file of ``tools.pocket.train.audio``."""
    trainer = AudioTrainer(spec or PocketSpec())
    _read(state, trainer)
    return trainer


def load_audio_tokenizer(state: Path, spec: PocketSpec | None = None) -> AudioTokenizer:
    """The tokenizer alone, for good: ``tokenizer(mel, segments)`` gives codes, no gradients."""
    return load_audio_trainer(state, spec).tokenizer.eval().requires_grad_(False)


def vision_tensors(tower: VisionTower) -> dict[str, torch.Tensor]:
    """The tower's tensors of ``model.safetensors``, bfloat16."""
    return {f"visual.{name}": _bf16(value) for name, value in tower.state_dict().items()}


def audio_tokenizer_tensors(trainer: AudioTrainer) -> dict[str, torch.Tensor]:
    """All tensors of ``audio_tokenizer/model.safetensors``: bfloat16, codebooks float32."""
    found: dict[str, torch.Tensor] = {}
    for name, value in trainer.tokenizer.state_dict().items():
        if not name.startswith("quantizer."):
            found[f"encoder.{name}"] = _bf16(value)
    quantiser = trainer.codes
    for stage, codebook in enumerate(quantiser.codebooks):
        prefix = f"encoder.quantizer.vq.layers.{stage}._codebook"
        found[f"{prefix}.embed"] = codebook.embed.detach().float().clone()
        found[f"{prefix}.embed_avg"] = quantiser.averages[stage].clone()
        found[f"{prefix}.cluster_size"] = quantiser.counts[stage].clone()
        found[f"{prefix}.inited"] = quantiser.filled.clone()
    return found


def _bf16(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to(torch.bfloat16).contiguous()
