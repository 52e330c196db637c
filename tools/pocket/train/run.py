"""What both tower programs share: environment, state files, optimizer, schedule, progress."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from tools.pocket.data.voices import CACHE
from tools.pocket.train.muon import MuonAdamW
from tools.pocket.train.parallel import Group

# The page faults of memory that glibc gives back and takes again cost up to 30 % of a step.
TUNABLES = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {
        "hugetlb": 1,
        "mmap_threshold": 1 << 30,
        "trim_threshold": 1 << 34,
        "top_pad": 1 << 28,
    }.items()
)
SAVE_SECONDS = 240.0
HIDDEN = re.compile(r"\b(attention|attn|self_attn|mlp|fc1|fc2|eh_proj)\.")  # names of parameters
ROUTER = re.compile(r"\bmlp\.gate$")
DECAY = 0.03
MUON_SCALE = 1.5  # of the learning rate
EVALUATE_SECONDS = 100.0  # of processor time, like all durations that are counted here


def tune_process() -> None:
    """One thread and an allocator that keeps its memory. Starts the program again if needed."""
    if os.environ.get("GLIBC_TUNABLES") != TUNABLES:
        environment = {**os.environ, "GLIBC_TUNABLES": TUNABLES, "OMP_NUM_THREADS": "1"}
        module = sys.modules["__main__"].__spec__
        assert module is not None
        command = [sys.executable, "-m", module.name, *sys.argv[1:]]
        os.execve(sys.executable, command, environment)
    torch.set_num_threads(1)


def arguments(
    description: str, name: str, rate: float, *, start: bool = False
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--state", type=Path, default=CACHE / f"{name}.pt", help="state file")
    parser.add_argument("--rate", type=float, default=rate, help="learning rate")
    parser.add_argument("--hours", type=float, default=12.0, help="stop after so many core hours")
    parser.add_argument(
        "--decay",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="lower the rate to 5 %% over so many core minutes, write STATE-final.pt and stop; "
        "the state file itself stays as it is, so that training can go on from it",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that train together")
    if start:
        parser.add_argument(
            "--start", type=Path, help="checkpoint to begin with where there is no state file"
        )
    return parser.parse_args()


def parameter_groups(modules: Iterable[nn.Module]) -> list[dict[str, Any]]:
    """Trainable parameters for ``MuonAdamW``: hidden matrices, other matrices, the rest."""
    named = [(n, p) for m in modules for n, p in m.named_parameters() if p.requires_grad]
    hidden = [p for n, p in named if p.ndim >= 2 and HIDDEN.search(n) and not ROUTER.search(n)]
    taken = set(map(id, hidden))
    others = [p for _, p in named if id(p) not in taken]
    return [
        {"params": hidden, "weight_decay": DECAY, "muon": True, "scale": MUON_SCALE},
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": DECAY, "scale": 1.0},
        {"params": [p for p in others if p.ndim < 2], "scale": 1.0},
    ]


def optimizer(modules: Iterable[nn.Module], rate: float) -> MuonAdamW:
    """Muon for hidden matrices, AdamW for the rest; weight decay on matrices only."""
    return MuonAdamW([group for group in parameter_groups(modules) if group["params"]], rate)


def save_atomically(value: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    torch.save(value, partial)
    partial.replace(path)


@dataclass
class Job:
    """A training loop around ``step(number) -> losses`` and ``evaluate() -> accuracies``.

    ``state`` and ``restore`` turn everything that training needs into a dict and back. Time is
    processor time: a background job may wait or be paused for as long as others need the machine.
    """

    step: Callable[[int], dict[str, float]]
    evaluate: Callable[[], dict[str, float]]
    state: Callable[[], dict[str, Any]]
    restore: Callable[[dict[str, Any]], None]
    optimizer: torch.optim.Optimizer
    options: argparse.Namespace
    group: Group = field(default_factory=Group)
    warm_up: int = 100
    number: int = 0
    seconds: float = 0.0
    items: int = 0
    _losses: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Train until the hours or the decay are over, or a signal says stop."""
        path: Path = self.options.state
        if path.is_file():
            self._load(path)
        decay = 60.0 * self.options.decay
        if decay:
            path = path.with_name(f"{path.stem}-final.pt")
        limit = decay or 3600.0 * self.options.hours - self.seconds
        stopped: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _: stopped.append(got))
        start = told = time.process_time()
        saved = time.monotonic()
        before, rate = self.seconds, 0.0
        while True:
            spent = time.process_time() - start
            if self.group.any(bool(stopped) or spent >= limit):
                break
            falling = 1.0 - 0.95 * spent / decay if decay else 1.0
            rate = self.options.rate * min(1.0, (self.number + 1) / self.warm_up) * falling
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group.get("scale", 1.0)  # a part may learn more slowly
            self._count(self.step(self.number))
            self.number += 1
            now = time.process_time()
            self.seconds = before + now - start
            if not self.group.leads:
                continue
            if now - told > EVALUATE_SECONDS or self.number == 1:
                self._tell(rate)
                told = now
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save(path)
                saved = time.monotonic()
        if self.group.leads:
            self._tell(rate)
            self.save(path)

    def _count(self, losses: dict[str, float]) -> None:
        self.items += int(losses.pop("items", 0))
        for name, value in losses.items():
            old = self._losses.get(name, value)
            self._losses[name] = old + 0.05 * (value - old)

    def _tell(self, rate: float) -> None:
        figures = {**self._losses, **{f"heldout {k}": v for k, v in self.evaluate().items()}}
        shown = "  ".join(f"{name} {value:.3f}" for name, value in figures.items())
        minutes = self.seconds / 60
        print(
            f"step {self.number}  {minutes:.1f} core min  {self.items} items  "
            f"rate {rate:.2e}  {shown}",
            flush=True,
        )

    def save(self, path: Path) -> None:
        meta = {"number": self.number, "seconds": self.seconds, "items": self.items}
        value = {**self.state(), "optimizer": self.optimizer.state_dict(), "meta": meta}
        save_atomically(value, path)

    def _load(self, path: Path) -> None:
        value = torch.load(path, map_location="cpu", weights_only=True)
        self.restore(value)
        self.optimizer.load_state_dict(value["optimizer"])
        self.number = value["meta"]["number"]
        self.seconds = value["meta"]["seconds"]
        self.items = value["meta"]["items"]
        print(f"resumed {path} at step {self.number}", flush=True)


class Training(Protocol):
    """What a training program builds: its step, its accuracies, and its state as a dict."""

    def step(self, number: int, optimizer: torch.optim.Optimizer) -> dict[str, float]: ...

    def evaluate(self) -> dict[str, float]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, value: dict[str, Any]) -> None: ...


def train(
    training: Training,
    optimizer: torch.optim.Optimizer,
    options: argparse.Namespace,
    group: Group | None = None,
) -> None:
    """Run a training until its hours are over or a signal says stop."""
    Job(
        step=lambda number: training.step(number, optimizer),
        evaluate=training.evaluate,
        state=training.state,
        restore=training.restore,
        optimizer=optimizer,
        options=options,
        group=group or Group(),
    ).run()
