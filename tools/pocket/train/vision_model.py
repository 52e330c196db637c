"""The vision tower with its training-only heads: what each patch and each row shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from encoders.vision.config import VisionConfig
from encoders.vision.tower import VisionTower
from tools.pocket import configs
from tools.pocket.data.labels import CHARACTERS, COLUMNS, EVENTS, NUMBERS, SLOTS
from tools.pocket.data.words import COLOURS, SHAPES, SIZES
from tools.pocket.spec import PocketSpec
from tools.pocket.train.objectives import told_loss
from tools.pocket.train.vision_data import CELLS, MERGE, Item, Labels

Targets = tuple[tuple[str, int, int], ...]
# Name, classes and number of predictions for each patch, in the order of the head's outputs.
TARGETS: Targets = (
    ("colour", len(COLOURS) + 1, 2),
    ("shape", len(SHAPES) + 1, 2),
    ("size", len(SIZES) + 1, 2),
    ("characters", len(CHARACTERS) + 1, COLUMNS),
    ("thirds", 3, 2),
    ("numbers", NUMBERS + 1, COLUMNS),
    ("cell", CELLS, 2),
    ("within", len(EVENTS) + 1, 1),
    ("slots", len(CHARACTERS) + 1, SLOTS),
)


def outputs(targets: Targets) -> list[int]:
    """How many outputs of a head each target takes."""
    return [classes * count for _, classes, count in targets]


WIDTH = sum(outputs(TARGETS))
# What is known of patches halfway, two blocks before the end, and there: each is built on what was
# known before it. Things are compared and characters numbered; then these are sorted by number.
HALFWAY = ("colour", "shape", "characters")
KNOWN: tuple[Targets, ...] = (
    tuple(target for target in TARGETS if target[0] in HALFWAY),
    tuple(target for target in TARGETS if target[0] in (*HALFWAY, "numbers")),
    TARGETS,
)
WEIGHTS = {
    "colour": 1.0,
    "shape": 1.0,
    "size": 0.7,
    "characters": 2.5,
    "thirds": 0.3,
    "numbers": 2.0,
    "cell": 0.3,
    "within": 3.0,
    "slots": 2.0,
}
WHERE = ("thirds", "cell")  # have no class for nothing
BACKGROUND = 0.15
# What fills few patches, or comes seldom: narrow characters, those at the end of a line, and moves.
NARROW = {"I": 2.5, "1": 1.5, "J": 1.5, "L": 1.5, "T": 1.3, "F": 1.3}
NARROW_WEIGHTS = (BACKGROUND, *(NARROW.get(character, 1.0) for character in CHARACTERS))
CLASS_WEIGHTS = {
    "characters": NARROW_WEIGHTS,
    "slots": NARROW_WEIGHTS,
    "numbers": (BACKGROUND, 1.0, 1.1, 1.3, 1.6, 2.0, 3.0),
    "within": (BACKGROUND, *(3.0 if event.startswith("moves") else 1.0 for event in EVENTS)),
}
STAGES = (0.5, 0.7, 1.0, 1.0)  # weights of what is known where, last of merged rows
Logits = dict[str, torch.Tensor]  # [n, count, classes] float32, by name of the target
Apart = Callable[[torch.Tensor], torch.Tensor]


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
    """Labels of every patch on the way through the tower, and of the rows that the language model
    gets."""

    def __init__(self, spec: PocketSpec) -> None:
        super().__init__()
        self.tower = build_tower(spec)
        hidden, depth = self.tower.config.hidden_size, self.tower.config.depth
        self.patch_heads = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, sum(outputs(targets))))
            for targets in KNOWN
        )
        self.row_head = nn.Linear(self.tower.config.out_hidden_size, WIDTH * MERGE**2)
        # The tower returns rows only: what is known of patches are inputs of its parts.
        blocks, self._kept = self.tower.blocks, dict[int, torch.Tensor]()
        parts = (blocks[depth // 2], blocks[depth - 2], self.tower.merger)
        for number, part in enumerate(parts):
            part.register_forward_pre_hook(partial(self._keep, number))

    def _keep(self, number: int, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._kept[number] = inputs[0]

    def predictions(self, rows: torch.Tensor, apart: Apart) -> tuple[Logits, ...]:
        """What is said of each patch at each of ``STAGES``, last by the ``rows`` that the tower has
        just returned; ``apart`` is what the heads see of the model."""
        by_patch = [
            split(head(apart(self._kept.pop(number))), targets)
            for number, (head, targets) in enumerate(zip(self.patch_heads, KNOWN, strict=True))
        ]
        return (*by_patch, split(self.row_head(apart(rows)).view(-1, WIDTH)))

    def forward(self, items: Sequence[Item]) -> tuple[Logits, ...]:
        """``predictions`` of the items."""
        rows = torch.cat(self.tower([(item.patches, item.grid) for item in items]))
        return self.predictions(rows, nn.Identity())

    def losses(self, items: Sequence[Item]) -> dict[str, torch.Tensor]:
        labels = Labels.concat([item.labels for item in items])
        found: dict[str, torch.Tensor | float] = {}
        for weight, predicted in zip(STAGES, self(items), strict=True):
            for name, logits in predicted.items():
                loss = weight * target_loss(name, logits, labels)
                found[name] = found.get(name, 0.0) + loss
        return {name: torch.as_tensor(value) for name, value in found.items()}


def split(prediction: torch.Tensor, targets: Targets = TARGETS) -> Logits:
    """[n, width] to the logits of each target."""
    parts = prediction.float().split(outputs(targets), dim=-1)
    return {
        name: part.unflatten(-1, (count, classes))
        for (name, classes, count), part in zip(targets, parts, strict=True)
    }


def target_loss(name: str, logits: torch.Tensor, labels: Labels) -> torch.Tensor:
    """Weighted mean cross-entropy over the patches that have this label; 0 where none has."""
    classes = logits.shape[-1]
    usual = (1.0 if name in WHERE else BACKGROUND, *(1.0,) * (classes - 1))
    weight = logits.new_tensor(CLASS_WEIGHTS.get(name, usual))
    return WEIGHTS[name] * told_loss(logits.flatten(0, 1), getattr(labels, name).flatten(), weight)
