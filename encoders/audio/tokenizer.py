"""The audio tokenizer's encoder: mel frames to codes.

Two convolutions, pre-norm transformer layers with an early layer's output added at the end,
pooling, residual quantisation. Works on packed segments (see `packing`), each encoded as if alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from encoders.audio.attention import AttentionPlan, attention_plan
from encoders.audio.config import Span, TokenizerConfig
from encoders.audio.lengths import SoundLengths
from encoders.audio.options import AttentionForm
from encoders.audio.packing import PackedConv, positions, window_index
from encoders.audio.quantizer import ResidualQuantizer
from encoders.audio.rotary import Table, rotary_table, rotate


class SelfAttention(nn.Module):
    """Projections around an attention plan; the key has no bias."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        width = config.d_model
        self.heads = config.heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, table: Table, plan: AttentionPlan) -> torch.Tensor:
        projections = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (p.unflatten(-1, (self.heads, -1)) for p in projections)
        return self.out_proj(plan(rotate(q, table), rotate(k, table), v).flatten(-2))


class TokenizerLayer(nn.Module):
    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.ffn)
        self.fc2 = nn.Linear(config.ffn, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, x: torch.Tensor, table: Table, plan: AttentionPlan) -> torch.Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), table, plan)
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class AudioTokenizer(nn.Module):
    """Parameters carry the checkpoint's names (after its `encoder.` prefix).

    `stages` limits the codebooks to those the language model reads.
    """

    def __init__(
        self,
        config: TokenizerConfig,
        lengths: SoundLengths,
        *,
        stages: int,
        attention: AttentionForm = "causal_local",
    ) -> None:
        super().__init__()
        width = config.d_model
        self.config = config
        self.lengths = lengths
        self.spans = [config.span(layer, attention) for layer in range(config.layers)]
        self.conv1 = PackedConv(config.n_mels, width, config.kernel)
        self.conv2 = PackedConv(width, width, config.kernel)
        self.layers = nn.ModuleList(TokenizerLayer(config) for _ in range(config.layers))
        self.layer_norm = nn.LayerNorm(width)
        if config.pooler > 1:
            pool = PackedConv(width, width, config.pooler, bias=False)
            self.down_sample_layer = nn.ModuleList([pool])
            self.down_sample_norm = nn.LayerNorm(width)
        self.quantizer = ResidualQuantizer(config.codebooks[:stages], width)

    def forward(self, mel: torch.Tensor, segments: Sequence[int]) -> torch.Tensor:
        """Codes [sum of lengths.codes(segment), stages] of mel rows [sum(segments), n_mels]."""
        return self.quantizer(self.latents(mel, segments))

    def latents(self, mel: torch.Tensor, segments: Sequence[int]) -> torch.Tensor:
        """What the codebooks quantise, [sum of codes, d_model]; differentiable.

        Neighbouring segments of equal length are cheapest: sort by length.
        """
        x, frames = self._convolve(mel, segments)
        table = rotary_table(
            positions(frames, x.device), self.config.head_dim, self.config.rope_theta, x.dtype
        )
        plans: dict[Span, AttentionPlan] = {
            span: attention_plan(frames, span, x.device) for span in set(self.spans)
        }
        early: torch.Tensor | None = None
        for number, (layer, span) in enumerate(zip(self.layers, self.spans, strict=True), start=1):
            x = layer(x, table, plans[span])
            if number == self.config.skip_layer:
                early = x
        x = self.layer_norm(x if early is None else x + early)
        return self._pool(x, frames, segments) if self.config.pooler > 1 else x

    def _convolve(
        self, mel: torch.Tensor, segments: Sequence[int]
    ) -> tuple[torch.Tensor, list[int]]:
        kernel, stride, device = self.config.kernel, self.config.stride, mel.device
        middle = [length + 3 - kernel for length in segments]
        frames = [self.lengths.hidden_frames(length) for length in segments]
        near = window_index(segments, middle, kernel=kernel, stride=1, before=1, device=device)
        x = F.gelu(self.conv1(mel.to(self.conv1.weight.dtype), near))
        near = window_index(middle, frames, kernel=kernel, stride=stride, before=1, device=device)
        return F.gelu(self.conv2(x, near)), frames

    def _pool(
        self, x: torch.Tensor, frames: Sequence[int], segments: Sequence[int]
    ) -> torch.Tensor:
        """Strided convolution; an odd last frame is completed with zeros, as for a lone segment."""
        codes = [self.lengths.codes(length) for length in segments]
        width = self.config.pooler
        near = window_index(frames, codes, kernel=width, stride=width, before=0, device=x.device)
        return self.down_sample_norm(F.gelu(self.down_sample_layer[0](x, near)))
