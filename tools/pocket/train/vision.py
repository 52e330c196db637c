"""Trains the vision tower on labels of every patch.

python -m tools.pocket.train.vision [--hours H] [--decay MINUTES] [--state FILE]

Needs the fonts of tools/pocket/data/fonts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.pocket.data.sample import Stream, stream
from tools.pocket.spec import PocketSpec
from tools.pocket.train import run, vision_data
from tools.pocket.train.precision import autocast
from tools.pocket.train.vision_data import SEED, Item, Labels
from tools.pocket.train.vision_model import VisionTrainer

PATCHES = 2400
# Held-out pictures of each kind, and which labels they measure.
HELDOUT: dict[str, tuple[Callable[[Stream], Item], int]] = {
    "scene": (vision_data.scene, 32),
    "pair": (vision_data.pair, 24),
    "print20": (lambda item: vision_data.line(item, low=20.0), 32),
    "print13": (lambda item: vision_data.line(item, high=19.0), 32),
}


class VisionJob:
    """One step's work and the held-out measure."""

    def __init__(self, spec: PocketSpec, patches: int = PATCHES) -> None:
        torch.manual_seed(SEED)
        self.trainer = VisionTrainer(spec)
        self.patches = patches
        self.heldout: dict[str, list[Item]] = {}

    def step(self, number: int, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        items = vision_data.batch("train", number, self.patches)
        return {**self.learn(items, optimizer), "items": len(items)}

    def learn(self, items: Sequence[Item], optimizer: torch.optim.Optimizer) -> dict[str, float]:
        """One optimizer step on these items; the losses."""
        with autocast(), sdpa_kernel(SDPBackend.MATH):
            losses = self.trainer.losses(items)
            total = torch.stack(list(losses.values())).sum()
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.trainer.parameters(), 1.0)
        optimizer.step()
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        return {**values, "norm": float(norm)}

    def state(self) -> dict[str, Any]:
        return {"model": self.trainer.state_dict()}

    def restore(self, value: dict[str, Any]) -> None:
        self.trainer.load_state_dict(value["model"])

    def evaluate(self) -> dict[str, float]:
        """Accuracy on the foreground patches of held-out pictures, from the merged rows."""
        if not self.heldout:
            for name, (maker, count) in HELDOUT.items():
                made = [maker(stream("heldout", name, SEED, i)) for i in range(count)]
                self.heldout[name] = made
        figures: dict[str, float] = {}
        for name, items in self.heldout.items():
            with torch.no_grad(), autocast():
                *_, by_row = self.trainer(items)
            labels = Labels.concat([item.labels for item in items])
            found = {key: logits.argmax(dim=-1) for key, logits in by_row.items()}
            if name.startswith("print"):
                figures[name] = share(found["characters"], labels.characters)
            elif name == "pair":
                figures["second"] = share(found["colour"][:, 1], labels.colour[:, 1])
            else:
                for key in ("colour", "shape", "size"):
                    figures[key] = share(found[key][:, 0], getattr(labels, key)[:, 0])
        return figures


def share(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Right answers among labels that are neither background nor missing."""
    shown = wanted > 0
    return float((found == wanted)[shown].float().mean())


def main() -> None:
    run.tune_process()
    options = run.arguments("Train the vision tower.", "vision", 1.2e-3)
    job = VisionJob(PocketSpec())
    optimizer = run.optimizer([job.trainer], options.rate)
    run.train(job, optimizer, options)


if __name__ == "__main__":
    main()
