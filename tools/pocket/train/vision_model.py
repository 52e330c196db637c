"""The vision tower with its training-only heads: what each patch and each row shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from encoders.vision.config import VisionConfig
from encoders.vision.tower import VisionTower
from tools.pocket import configs
from tools.pocket.data.labels import CHARACTERS, COLUMNS, EVENTS, NUMBERS
from tools.pocket.data.words import COLOURS, SHAPES, SIZES
from tools.pocket.spec import PocketSpec
from tools.pocket.train.objectives import told_loss
from tools.pocket.train.vision_data import CELLS, MERGE, Item, Labels

# Name, classes and number of predictions for each patch, in the order of the head's outputs.
TARGETS = (
    ("colour", len(COLOURS) + 1, 2),
    ("shape", len(SHAPES) + 1, 2),
    ("size", len(SIZES) + 1, 2),
    ("characters", len(CHARACTERS) + 1, COLUMNS),
    ("thirds", 3, 2),
    ("numbers", NUMBERS + 1, COLUMNS),
    ("cell", CELLS, 2),
    ("within", len(EVENTS) + 1, 1),
)
WIDTH = sum(classes * count for _, classes, count in TARGETS)
WEIGHTS = {
    "colour": 1.0,
    "shape": 1.0,
    "size": 0.7,
    "characters": 2.5,
    "thirds": 0.3,
    "numbers": 1.5,
    "cell": 0.3,
    "within": 1.0,
}
WHERE = ("thirds", "cell")  # have no class for nothing
BACKGROUND = 0.15
ROWS = 0.7  # weight of the labels of merged rows against those of patches


def build_tower(spec: PocketSpec) -> VisionTower:
    """The tower of the checkpoint's own configuration with fresh weights; sinks start at 0."""
    raw: dict[str, Any] = configs.model_config(spec)["vision_config"]
    tower = VisionTower(VisionConfig.from_dict(raw))
    depth = (2 * tower.config.depth) ** -0.5
    with torch.no_grad():
        for name, parameter in tower.named_parameters():
            if name.endswith(("attn.proj.weight", "mlp.down_proj.weight")):
                parameter.mul_(depth)
    return tower


class VisionTrainer(nn.Module):
    """Per-patch labels on the blocks' output and on the rows that the language model gets."""

    def __init__(self, spec: PocketSpec) -> None:
        super().__init__()
        self.tower = build_tower(spec)
        hidden = self.tower.config.hidden_size
        self.patch_head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, WIDTH))
        out = self.tower.config.out_hidden_size
        self.row_head = nn.Linear(out, WIDTH * MERGE**2)
        # The tower returns rows only: its merger's input is what the blocks say of each patch.
        self._patches: torch.Tensor | None = None
        self.tower.merger.register_forward_pre_hook(self._keep)

    def _keep(self, _: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        self._patches = inputs[0]

    def forward(self, items: Sequence[Item]) -> tuple[torch.Tensor, torch.Tensor]:
        """Predictions [n, WIDTH] of the n patches, from the blocks and from the rows."""
        rows = torch.cat(self.tower([(item.patches, item.grid) for item in items]))
        patches, self._patches = self._patches, None
        assert patches is not None
        by_row = self.row_head(rows).view(-1, WIDTH)
        return self.patch_head(patches), by_row

    def losses(self, items: Sequence[Item]) -> dict[str, torch.Tensor]:
        labels = Labels.concat([item.labels for item in items])
        by_patch, by_row = self(items)
        found: dict[str, torch.Tensor | float] = {}
        for weight, prediction in ((1.0, by_patch), (ROWS, by_row)):
            for name, logits in split(prediction).items():
                loss = weight * target_loss(name, logits, labels)
                found[name] = found.get(name, 0.0) + loss
        return {name: torch.as_tensor(value) for name, value in found.items()}


def split(prediction: torch.Tensor) -> dict[str, torch.Tensor]:
    """[n, WIDTH] to logits [n, count, classes] float32 by name."""
    parts = prediction.float().split([classes * count for _, classes, count in TARGETS], dim=-1)
    return {
        name: part.unflatten(-1, (count, classes))
        for (name, classes, count), part in zip(TARGETS, parts, strict=True)
    }


def target_loss(name: str, logits: torch.Tensor, labels: Labels) -> torch.Tensor:
    """Weighted mean cross-entropy over the patches that have this label; 0 where none has."""
    weight = logits.new_ones(logits.shape[-1])
    if name not in WHERE:
        weight[0] = BACKGROUND
    return WEIGHTS[name] * told_loss(logits.flatten(0, 1), getattr(labels, name).flatten(), weight)
