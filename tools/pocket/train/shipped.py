"""A checkpoint as the start of joint training, where the state files are gone.

The label heads, the auxiliary heads and the optimizer's moments are not in a checkpoint; they
begin anew and are learnt again within minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from encoders.vision.tower import VisionTower
from tools.pocket.train.audio_model import AudioTrainer
from tools.pocket.train.media import AudioRows
from tools.pocket.trunk.model import Trunk
from tools.pocket.trunk.tensors import Tensors, load_trunk


def fill_from(
    checkpoint: Path, trunk: Trunk, tower: VisionTower, rows: AudioRows, audio: AudioTrainer
) -> None:
    """Fill the modules from a checkpoint of the same geometry.

    Raises ``FileNotFoundError`` for a missing file, ``KeyError`` or ``RuntimeError`` for tensors
    that are missing or of another shape.
    """
    main = load_file(checkpoint / "model.safetensors")
    load_trunk(trunk, main | load_file(checkpoint / "model_mtp.safetensors"))
    fill(tower, part(main, "visual."))
    fill(rows.encoder, part(main, "audio_encoder."))
    fill(rows.embeddings, part(main, "speech_embeddings."))
    load_tokenizer(audio, load_file(checkpoint / "audio_tokenizer" / "model.safetensors"))


def part(tensors: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    return {k.removeprefix(prefix): t.float() for k, t in tensors.items() if k.startswith(prefix)}


def fill(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    module.load_state_dict(dict(tensors), strict=True)


def load_tokenizer(trainer: AudioTrainer, tensors: Mapping[str, torch.Tensor]) -> None:
    """The tokenizer with its codebooks and their moving averages."""
    averages = ("embed_avg", "cluster_size", "inited")
    fill(
        trainer.tokenizer,
        part({k: t for k, t in tensors.items() if not k.endswith(averages)}, "encoder."),
    )
    for stage in range(len(trainer.codes.codebooks)):
        base = f"encoder.quantizer.vq.layers.{stage}._codebook"
        trainer.codes.averages[stage] = tensors[f"{base}.embed_avg"]
        trainer.codes.counts[stage] = tensors[f"{base}.cluster_size"]
        trainer.codes.filled.copy_(tensors[f"{base}.inited"])
