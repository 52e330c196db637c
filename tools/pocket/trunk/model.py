"""The decoder stack and its MTP layers (mimo-v2.md sections 2 and 3), batched for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tools.pocket.spec import TextSpec
from tools.pocket.trunk.attention import full_attention, window_attention
from tools.pocket.trunk.experts import Experts, swiglu
from tools.pocket.trunk.rotary import Rotary, rotary


class Attention(nn.Module):
    """Projections in plain order [Q | K | V]; the checkpoint's sharded order is ``tensors``'s."""

    def __init__(self, text: TextSpec, sliding: bool) -> None:
        super().__init__()
        self.heads, self.groups = text.num_attention_heads, text.kv_heads(sliding)
        self.head_dim, self.v_dim = text.head_dim, text.v_head_dim
        self.window = text.sliding_window if sliding else 0
        self.value_scale = text.attention_value_scale
        rows = (self.heads + self.groups) * self.head_dim + self.groups * self.v_dim
        self.qkv = nn.Linear(text.hidden_size, rows, bias=False)
        self.o_proj = nn.Linear(self.heads * self.v_dim, text.hidden_size, bias=False)
        if sliding:
            self.sinks = nn.Parameter(torch.zeros(self.heads))

    def project(
        self, x: torch.Tensor, angles: Rotary
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, T, heads, D], scaled, k [B, T, groups, D] and v [B, T, groups, V]."""
        qk_heads = self.heads + self.groups
        qk, v = self.qkv(x).split([qk_heads * self.head_dim, self.groups * self.v_dim], dim=-1)
        qk = angles.apply(qk.unflatten(-1, (qk_heads, self.head_dim)))
        q, k = qk.split([self.heads, self.groups], dim=2)
        q = q * self.head_dim**-0.5
        return q, k, v.unflatten(-1, (self.groups, self.v_dim)) * self.value_scale

    def forward(self, x: torch.Tensor, angles: Rotary) -> torch.Tensor:
        q, k, v = self.project(x, angles)
        if self.window:
            out = window_attention(q, k, v, self.sinks, self.window)
        else:
            out = full_attention(q, k, v)
        return self.o_proj(out)


class DenseMlp(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(swiglu(self.gate_up(x)))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """RMSNorm over the last dimension in float32, given out as ``dtype``."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(dtype)


_rms_norm: Callable[..., torch.Tensor] = rms_norm


def compile_norms() -> None:
    """Fuse the norms of all trunks of this process: a tenth of a training step on a CPU.

    Needs a C++ compiler and some seconds at the first use.
    """
    global _rms_norm
    _rms_norm = torch.compile(rms_norm, dynamic=True)


class Norm(nn.Module):
    """RMSNorm; under autocast its output has autocast's type."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if cast else torch.float32
        return _rms_norm(x, self.weight, self.eps, dtype)


class Layer(nn.Module):
    def __init__(self, text: TextSpec, sliding: bool, sparse: bool) -> None:
        super().__init__()
        hidden = text.hidden_size
        self.input_norm = Norm(hidden, text.layernorm_epsilon)
        self.post_norm = Norm(hidden, text.layernorm_epsilon)
        self.attention = Attention(text, sliding)
        self.mlp: Experts | DenseMlp
        if sparse:
            self.mlp = Experts(
                hidden, text.moe_intermediate_size, text.n_routed_experts, text.num_experts_per_tok
            )
        else:
            self.mlp = DenseMlp(hidden, text.intermediate_size)

    def forward(self, x: torch.Tensor, angles: Rotary, valid: torch.Tensor | None) -> torch.Tensor:
        x = x + self.attention(self.input_norm(x), angles)
        normed = self.post_norm(x)
        if isinstance(self.mlp, Experts):
            y = self.mlp(normed.flatten(0, 1), None if valid is None else valid.flatten())
            return x + y.view(x.shape)
        return x + self.mlp(normed)


class MtpLayer(nn.Module):
    """One draft layer: embedding half first, then one dense window layer, then its own norm."""

    def __init__(self, text: TextSpec) -> None:
        super().__init__()
        hidden = text.hidden_size
        self.enorm = Norm(hidden, text.layernorm_epsilon)
        self.hnorm = Norm(hidden, text.layernorm_epsilon)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer = Layer(text, sliding=True, sparse=False)
        self.final_norm = Norm(hidden, text.layernorm_epsilon)

    def forward(self, e: torch.Tensor, h: torch.Tensor, angles: Rotary) -> torch.Tensor:
        """Hidden states for the shared head, from embeddings of the shifted ids and the trunk's
        normalised hidden states, both [B, T, hidden]."""
        x = self.eh_proj(torch.cat([self.enorm(e), self.hnorm(h)], dim=-1))
        return self.final_norm(self.layer(x, angles, None))


@dataclass(frozen=True)
class TrunkOutput:
    """``hidden`` [B, T, h] after the final norm, and the stream before each layer."""

    hidden: torch.Tensor
    streams: tuple[torch.Tensor, ...]

    @property
    def late(self) -> torch.Tensor:
        """The stream before the last layer."""
        return self.streams[-1]


class Trunk(nn.Module):
    """Embedding, decoder layers, final norm, head, and the MTP layers beside them."""

    def __init__(self, text: TextSpec) -> None:
        super().__init__()
        self.text = text
        self.embed = nn.Embedding(text.vocab_size, text.hidden_size)
        self.layers = nn.ModuleList(
            Layer(text, bool(sliding), bool(sparse))
            for sliding, sparse in zip(text.hybrid_layer_pattern, text.moe_layer_freq, strict=True)
        )
        self.norm = Norm(text.hidden_size, text.layernorm_epsilon)
        self.head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.mtp = nn.ModuleList(MtpLayer(text) for _ in range(text.mtp_layers))

    def angles(self, length: int, sliding: bool) -> Rotary:
        theta = self.text.swa_rope_theta if sliding else self.text.rope_theta
        return rotary(length, self.text.rotary_dim, theta)

    def forward(self, x: torch.Tensor, valid: torch.Tensor | None = None) -> TrunkOutput:
        """``x`` [B, T, h]: embeddings with media rows put in; T a multiple of the window.

        ``valid`` [B, T] bool marks real tokens; padding belongs at the end of rows.
        """
        angles = [self.angles(x.shape[1], sliding) for sliding in (False, True)]
        streams = []
        for layer, sliding in zip(self.layers, self.text.hybrid_layer_pattern, strict=True):
            streams.append(x)
            x = layer(x, angles[sliding], valid)
        return TrunkOutput(self.norm(x), tuple(streams))

    def draft(self, k: int, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states of MTP layer k: row p sees token p+1+k (``ids`` [B, T] unshifted).

        Row p's logits predict token p+2+k. Ids past the end repeat the last one. Positions are
        the rows' own, the hidden states the trunk's for every k (mimo-v2.md section 3.3).
        """
        shifted = torch.cat([ids[:, 1 + k :], ids[:, -1:].expand(-1, 1 + k)], dim=1)
        return self.mtp[k](self.embed(shifted), hidden, self.angles(ids.shape[1], sliding=True))

    @property
    def experts(self) -> list[Experts]:
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, Experts)]
