"""One training over several processes of one machine, each with a thread of its own.

Every process draws its own data; gradients and expert loads are averaged and summed at each
optimizer step, so all of them keep the same weights. Two processes of one thread train half as
fast again as one of two threads (measured in the feasibility study).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

RANK, MEETING = "OMNISERVE_POCKET_RANK", "OMNISERVE_POCKET_MEETING"


@dataclass(frozen=True)
class Group:
    """This process's place among ``ranks`` of them; alone by default."""

    rank: int = 0
    ranks: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process evaluates, reports and saves."""
        return self.rank == 0

    def average(self, parameters: Sequence[torch.Tensor]) -> None:
        """Replace every gradient by its mean over the processes; a missing one counts as zero."""
        if self.ranks == 1:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= self.ranks
        parts = flat.split([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def sum(self, tensors: Iterable[torch.Tensor]) -> None:
        """Add up each tensor over the processes, in place."""
        if self.ranks > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def any(self, value: bool) -> bool:
        """Whether ``value`` holds in one of the processes. All must ask."""
        if self.ranks == 1:
            return value
        flag = torch.tensor(int(value))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)


def join(ranks: int) -> Group:
    """The group of this program, run ``ranks`` times: the first process starts the others."""
    if ranks == 1:
        return Group()
    rank = int(os.environ.get(RANK, "0"))
    if rank == 0:
        meeting = Path(tempfile.mkdtemp()) / "meeting"
        module = sys.modules["__main__"].__spec__
        assert module is not None
        for other in range(1, ranks):
            environment = {**os.environ, RANK: str(other), MEETING: str(meeting)}
            subprocess.Popen([sys.executable, "-m", module.name, *sys.argv[1:]], env=environment)
    else:
        meeting = Path(os.environ[MEETING])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    return Group(rank, ranks)
