"""Muon for the hidden matrices, AdamW for everything else, as one optimizer.

Muon replaces the momentum of a matrix by its nearest semi-orthogonal matrix, found by five
Newton-Schulz steps (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural
networks"); the update is scaled to AdamW's usual size (Liu et al. 2025, "Muon is scalable for LLM
training"), so that one learning rate serves both. ``torch.optim.Muon`` does the same to one 2-D
matrix at a time; here matrices of one shape, and all experts of a layer, take one batched product.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tools.pocket.train.parallel import Group
from tools.pocket.train.precision import step_type

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
STEPS = 5
MOMENTUM = 0.95
BETAS = (0.9, 0.98)
EPSILON = 1e-8
RMS = 0.2  # of AdamW's usual update
ALONE = Group()


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """The nearest semi-orthogonal matrices of ``x`` [n, rows, columns], roughly: bfloat16 is
    enough for them, float32 where that is faster."""
    a, b, c = NEWTON_SCHULZ
    x = x.to(step_type())
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class MuonAdamW(torch.optim.Optimizer):
    """``groups`` are dicts with "params", "weight_decay" and "muon": whether these are matrices
    [rows, columns], or stacks of them [n, rows, columns], for Muon."""

    def __init__(self, groups: Iterable[dict[str, Any]], rate: float, among: Group = ALONE) -> None:
        super().__init__(groups, {"lr": rate, "weight_decay": 0.0, "muon": False})
        self.among = among

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            found = [p for p in group["params"] if p.grad is not None]
            if not found:
                continue
            torch._foreach_mul_(found, 1.0 - group["lr"] * group["weight_decay"])
            if group["muon"]:
                self._muon(found, group["lr"])
            else:
                self._adam(found, group["lr"])

    def _muon(self, parameters: list[torch.Tensor], rate: float) -> None:
        shapes: dict[tuple[int, ...], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for p in parameters:
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p)
            assert p.grad is not None
            state["momentum"].lerp_(p.grad, 1 - MOMENTUM)
            update = p.grad.lerp(state["momentum"], MOMENTUM)
            shapes.setdefault(tuple(p.shape[-2:]), []).append(
                (p, update.reshape(-1, *p.shape[-2:]))
            )
        stacks = [torch.cat([update for _, update in pairs]) for pairs in shapes.values()]
        for (shape, pairs), stack in zip(shapes.items(), self._orthogonal(stacks), strict=True):
            scale = RMS * max(shape) ** 0.5
            for (p, _), u in zip(
                pairs, stack.split([update.shape[0] for _, update in pairs]), strict=True
            ):
                p.add_(u.reshape(p.shape).to(p.dtype), alpha=-rate * scale)

    def _orthogonal(self, stacks: list[torch.Tensor]) -> list[torch.Tensor]:
        """``orthogonal`` of each stack; of several processes, each does its share of matrices."""
        rank, ranks = self.among.rank, self.among.ranks
        if ranks == 1:
            return [orthogonal(stack) for stack in stacks]
        found = [torch.zeros_like(stack) for stack in stacks]
        for stack, out in zip(stacks, found, strict=True):
            own = slice(len(stack) * rank // ranks, len(stack) * (rank + 1) // ranks)
            if own.start < own.stop:
                out[own] = orthogonal(stack[own]).to(out.dtype)
        flat = torch.cat([out.flatten() for out in found])
        self.among.sum([flat])
        parts = flat.split([out.numel() for out in found])
        return [part.view_as(out) for part, out in zip(parts, found, strict=True)]

    def _adam(self, parameters: list[torch.Tensor], rate: float) -> None:
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {"mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
                self.state[p]["step"] = torch.zeros(())
            self.state[p]["step"] += 1
        gradients = [p.grad for p in parameters if p.grad is not None]
        means = [self.state[p]["mean"] for p in parameters]
        squares = [self.state[p]["square"] for p in parameters]
        torch._foreach_lerp_(means, gradients, 1 - BETAS[0])
        torch._foreach_mul_(squares, BETAS[1])
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - BETAS[1])
        steps = [float(self.state[p]["step"]) for p in parameters]
        scale = torch._foreach_div(squares, [1 - BETAS[1] ** n for n in steps])
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, EPSILON)
        torch._foreach_div_(scale, [-rate / (1 - BETAS[0] ** n) for n in steps])
        torch._foreach_addcdiv_(parameters, means, scale)
