"""Mixture of experts: sigmoid routing with a correction bias, experts on sorted tokens.

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

STEP = 64  # slots come in so many, so that the matrix kernels meet few different shapes


@dataclass(frozen=True)
class Routing:
    """``ids`` [N, k] chosen experts, ``weights`` [N, k] float32, ``load`` [E] tokens per expert."""

    ids: torch.Tensor
    weights: torch.Tensor
    load: torch.Tensor


@dataclass(frozen=True)
class Slots:
    """Where tokens go when expert e has ``sizes[e]`` slots, one expert behind the other.

    ``place`` [N, k]: slot of each choice (0 where it got none); ``kept`` [N, k] bool; ``token``
    and ``choice`` [slots]: the token and the flat choice in a slot, where ``used``.
    """

    sizes: list[int]
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
    counted = ids if valid is None else ids[valid]
    load = torch.bincount(counted.flatten(), minlength=gate.shape[0])
    return Routing(ids, weights, load)


def assign(routing: Routing, valid: torch.Tensor | None, most: int | None = None) -> Slots:
    """Give choices their slots in token order; those beyond an expert's ``most`` get none."""
    ids, experts, k = routing.ids, routing.load.shape[0], routing.ids.shape[1]
    load = routing.load if most is None else routing.load.clamp(max=most)
    rounded = (load + STEP - 1) // STEP * STEP
    limit = rounded if most is None else rounded.clamp(max=most)
    start = rounded.cumsum(0) - rounded
    flat = ids.flatten()
    hit = torch.arange(experts)[:, None] == flat
    usable = None if valid is None else valid.repeat_interleave(k)
    if usable is not None:
        hit = hit & usable
    position = (hit.to(torch.int32).cumsum(1) - 1).gather(0, flat[None])[0]
    kept = position < limit[flat]
    if usable is not None:
        kept = kept & usable
    place = start[flat] + position
    slots = int(rounded.sum())
    target = torch.where(kept, place, slots)
    choice = torch.full((slots + 1,), -1).scatter_(0, target, torch.arange(flat.shape[0]))[:-1]
    used = choice >= 0
    choice = choice.clamp(min=0)
    return Slots(
        sizes=rounded.tolist(),
        place=torch.where(kept, place, 0).view(ids.shape),
        kept=kept.view(ids.shape),
        token=choice // k,
        choice=choice,
        used=used,
    )


def _rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``x[index]``, several times faster."""
    return x.index_select(0, index.flatten()).view(*index.shape, x.shape[1])


class _Dispatch(torch.autograd.Function):
    """Rows of tokens to slots. Unused slots hold some row; nothing reads what comes of it.

    Both directions are gathers, which are much faster than the scatter that autograd would use.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, place: torch.Tensor, kept: torch.Tensor, token: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(place, kept)
        return _rows(x, token)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        place, kept = ctx.saved_tensors
        return (_rows(grad, place) * kept[..., None]).sum(1), None, None, None


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
        out = _rows(y, place[:, 0]) * weights[:, :1].to(y.dtype)
        for k in range(1, place.shape[1]):
            out.addcmul_(_rows(y, place[:, k]), weights[:, k : k + 1].to(y.dtype))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y, weights, place, token, choice, used = ctx.saved_tensors
        slot_weight = weights.flatten()[choice] * used
        grad_y = _rows(grad, token) * slot_weight.to(grad.dtype)[:, None]
        grad_weights = (_rows(y, place) * grad[:, None]).sum(-1, dtype=weights.dtype)
        return grad_y, grad_weights, None, None, None, None


class _PerExpert(torch.autograd.Function):
    """``x[rows of e] @ weight[e].T`` for all experts: x [slots, in], weight [E, out, in]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        out = x.new_empty(x.shape[0], weight.shape[1])
        for e, (rows, result) in enumerate(zip(x.split(sizes), out.split(sizes), strict=True)):
            torch.mm(rows, weight[e].T, out=result)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x, grad_weight = torch.empty_like(x), torch.empty_like(weight)
        parts = (grad.split(ctx.sizes), x.split(ctx.sizes), grad_x.split(ctx.sizes))
        for e, (g, rows, result) in enumerate(zip(*parts, strict=True)):
            torch.mm(g, weight[e], out=result)
            torch.mm(g.T, rows, out=grad_weight[e])
        return grad_x, grad_weight, None


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class Experts(nn.Module):
    """The router and the experts of one layer.

    ``gate_up`` [E, 2 * width, hidden] holds gate over up, ``down`` [E, hidden, width]. ``bias`` is
    the correction bias: no gradient, moved by ``balance`` after an optimiser step. ``load`` counts
    the tokens of each expert since then.
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
        the rest of its tokens skip it. Without one, as served, no token is left out.
        """
        routing = route(x, self.gate, self.bias, self.k, valid)
        if self.training:
            self.load += routing.load
        slots = assign(routing, valid, self._most(x.shape[0]))
        cast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if cast else x.dtype
        inputs = _Dispatch.apply(x.to(dtype), slots.place, slots.kept, slots.token)
        gate_up = _PerExpert.apply(inputs, self.gate_up.to(dtype), slots.sizes)
        outputs = _PerExpert.apply(swiglu(gate_up), self.down.to(dtype), slots.sizes)
        weights = routing.weights * slots.kept
        return _Combine.apply(outputs, weights, slots.place, slots.token, slots.choice, slots.used)

    def _most(self, rows: int) -> int | None:
        if self.capacity_factor is None:
            return None
        wanted = math.ceil(self.capacity_factor * rows * self.k / self.gate.shape[0])
        return math.ceil(wanted / STEP) * STEP

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
