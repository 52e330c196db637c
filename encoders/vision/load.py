"""The vision tower and its settings out of a checkpoint directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from encoders.checkpoint import Checkpoint, CheckpointError, load_module, read_config
from encoders.vision.attention import SinkForm
from encoders.vision.config import PixelBudget, VisionConfig
from encoders.vision.tower import VisionTower


@dataclass(frozen=True)
class VisionModel:
    tower: VisionTower
    config: VisionConfig
    budget: PixelBudget


def load_vision_model(
    directory: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    sink_form: SinkForm = "softmax_column",
) -> VisionModel:
    """Read config.json and the `visual.*` tensors (one safetensors file or an index).

    Sinks that the checkpoint leaves out are zero, as in SGLang. Raises `CheckpointError` for
    anything else that is missing, of the wrong shape or contradictory.
    """
    directory = Path(directory)
    raw = read_config(directory / "config.json")
    try:
        config = VisionConfig.from_dict(raw.get("vision_config") or {})
        budget = PixelBudget.from_dict(raw.get("processor_config") or {}, config.factor)
    except ValueError as error:
        raise CheckpointError(f"{directory / 'config.json'}: {error}") from error
    with torch.device("meta"):
        tower = VisionTower(config, sink_form)
    checkpoint = Checkpoint(directory)
    load_module(
        tower,
        checkpoint,
        prefix="visual.",
        device=device,
        dtype=dtype,
        zero_if_missing=lambda name: name.endswith(".sinks"),
    )
    return VisionModel(tower, config, budget)
