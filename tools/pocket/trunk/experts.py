"""Mixture of experts: sigmoid routing with a correction bias, experts by capacity or exactly.

Routing (mimo-v2.md section 2): float32 logits, top k of sigmoid + bias, weights from the sigmoid
alone, normalised. Each expert is a SwiGLU without biases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CAPACITY_STEP = 64  # few distinct shapes, so the matrix kernels are built once


@dataclass(frozen=True)
class Routing:
    """``ids`` [N, k] chosen experts, ``weights`` [N, k] float32, ``load`` [E] tokens per expert."""

    ids: torch.Tensor
    weights: torch.Tensor
    load: torch.Tensor


@dataclass(frozen=True)
class Slots:
    """Where tokens go when every expert has ``capacity`` slots.

    ``place`` [N, k]: slot of each choice (0 where it got none); ``kept`` [N, k] bool; ``token``
    and ``choice`` [E * capacity]: the token and the flat choice in a slot, where ``used``.
    """

    capacity: int
    place: torch.Tensor
    kept: torch.Tensor
    token: torch.Tensor
    choice: torch.Tensor
    used: torch.Tensor


def route(
    x: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor, k: int, valid: torch.Tensor | None
) -> Routing:
    """Choose k experts for each row of ``x`` [N, h]. Rows that are not ``valid`` add no load."""
    with torch.autocast("cpu", enabled=False):
        scores = F.linear(x.float(), gate).sigmoid()
        ids = (scores.detach() + bias).topk(k, dim=-1).indices
        weights = scores.gather(1, ids)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    hits = F.one_hot(ids, gate.shape[0]).sum(1)
    load = hits.sum(0) if valid is None else (hits * valid[:, None]).sum(0)
    return Routing(ids, weights, load)


def assign(routing: Routing, capacity: int, valid: torch.Tensor | None) -> Slots:
    """Give choices their slots in token order; those beyond an expert's capacity get none."""
    ids, experts = routing.ids, routing.load.shape[0]
    flat = ids.flatten()
    hit = torch.arange(experts)[:, None] == flat
    if valid is not None:
        hit = hit & valid.repeat_interleave(ids.shape[1])
    rank = hit.to(torch.int32).cumsum(1) - 1
    position = rank.gather(0, flat[None])[0]
    kept = position < capacity
    if valid is not None:
        kept = kept & valid.repeat_interleave(ids.shape[1])
    place = flat * capacity + position
    slots = experts * capacity
    target = torch.where(kept, place, slots)
    choice = torch.full((slots + 1,), -1).scatter(0, target, torch.arange(flat.shape[0]))[:-1]
    used = choice >= 0
    choice = choice.clamp(min=0)
    return Slots(
        capacity=capacity,
        place=torch.where(kept, place, 0).view(ids.shape),
        kept=kept.view(ids.shape),
        token=choice // ids.shape[1],
        choice=choice,
        used=used,
    )


class _Dispatch(torch.autograd.Function):
    """Rows of tokens to slots. Unused slots hold some row; nothing reads what comes of it.

    Both directions are gathers, which are much faster than the scatter that autograd would use.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, place: torch.Tensor, kept: torch.Tensor, token: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(place, kept)
        return x[token]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        place, kept = ctx.saved_tensors
        total = (grad[place] * kept[..., None]).sum(1)
        return total, None, None, None


class _Combine(torch.autograd.Function):
    """Weighted sum over a token's slots; ``weights`` are zero for choices without a slot."""

    @staticmethod
    def forward(
        ctx: Any,
        y: torch.Tensor,
        weights: torch.Tensor,
        place: torch.Tensor,
        token: torch.Tensor,
        choice: torch.Tensor,
        used: torch.Tensor,
    ) -> torch.Tensor:
        ctx.save_for_backward(y, weights, place, token, choice, used)
        return (y[place] * weights[..., None]).sum(1).to(y.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y, weights, place, token, choice, used = ctx.saved_tensors
        slot_weight = weights.flatten()[choice] * used
        grad_y = (grad[token] * slot_weight[:, None]).to(y.dtype)
        grad_weights = (y[place].float() * grad[:, None].float()).sum(-1)
        return grad_y, grad_weights, None, None, None, None


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class Experts(nn.Module):
    """The router and the experts of one layer.

    ``gate_up`` [E, 2 * width, hidden] holds gate over up, ``down`` [E, hidden, width]. ``bias`` is
    the correction bias: no gradient, moved by ``balance`` after an optimiser step.
    """

    bias: torch.Tensor
    load: torch.Tensor

    def __init__(self, hidden: int, width: int, experts: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.capacity_factor: float | None = None
        self.gate = nn.Parameter(torch.zeros(experts, hidden))
        self.gate_up = nn.Parameter(torch.zeros(experts, 2 * width, hidden))
        self.down = nn.Parameter(torch.zeros(experts, hidden, width))
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts, dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        """``x`` [N, hidden] to [N, hidden]; rows that are not ``valid`` [N] give zeros.

        With a ``capacity_factor`` each expert takes at most that many times its fair share and
        the rest of its tokens skip it; without one the capacity is the largest load.
        """
        routing = route(x, self.gate, self.bias, self.k, valid)
        if self.training:
            self.load += routing.load
        slots = assign(routing, self._capacity(routing, x.shape[0]), valid)
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))  # before the gathers: half the traffic
        inputs = _Dispatch.apply(x, slots.place, slots.kept, slots.token)
        experts = self.gate.shape[0]
        hidden = swiglu(torch.bmm(inputs.view(experts, -1, x.shape[1]), self.gate_up.mT))
        outputs = torch.bmm(hidden, self.down.mT).flatten(0, 1)
        weights = routing.weights * slots.kept
        return _Combine.apply(outputs, weights, slots.place, slots.token, slots.choice, slots.used)

    def _capacity(self, routing: Routing, rows: int) -> int:
        if self.capacity_factor is None:
            wanted = int(routing.load.max())
        else:
            wanted = math.ceil(self.capacity_factor * rows * self.k / self.gate.shape[0])
        return max(math.ceil(wanted / CAPACITY_STEP), 1) * CAPACITY_STEP

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """The same by a loop over experts, as a check."""
        routing = route(x, self.gate, self.bias, self.k, None)
        out = torch.zeros_like(x)
        for e in range(self.gate.shape[0]):
            token, choice = (routing.ids == e).nonzero(as_tuple=True)
            hidden = swiglu(F.linear(x[token], self.gate_up[e]))
            y = F.linear(hidden, self.down[e]) * routing.weights[token, choice, None]
            out = out.index_add(0, token, y.to(out.dtype))
        return out

    @torch.no_grad()
    def balance(self, step: float) -> None:
        """Move the correction bias by ``step`` towards equal load, then forget the load."""
        mean = self.load.float().mean()
        self.bias += step * torch.sign(mean - self.load.float())
        self.load.zero_()
