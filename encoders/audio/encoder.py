"""Codes to language-model rows: summed speech embeddings, group transformer, projection."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from encoders.audio.config import EncoderConfig
from encoders.audio.rotary import Table, rotary_table, rotate

_NORM_EPS = 1e-6


class GroupAttention(nn.Module):
    """Attention among the code frames of one group."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.heads * config.head_dim
        self.heads = config.heads
        self.causal = not config.full_attention
        self.q_proj = nn.Linear(config.dim, width)
        self.k_proj = nn.Linear(config.dim, width)
        self.v_proj = nn.Linear(config.dim, width)
        self.o_proj = nn.Linear(width, config.dim, bias=False)

    def forward(self, x: torch.Tensor, table: Table) -> torch.Tensor:
        projections = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (p.unflatten(-1, (self.heads, -1)) for p in projections)
        q, k, v = (p.transpose(1, 2) for p in (rotate(q, table), rotate(k, table), v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class GatedMlp(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.dim, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class GroupLayer(nn.Module):
    """A Qwen2 decoder layer."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.self_attn = GroupAttention(config)
        self.mlp = GatedMlp(config)
        self.input_layernorm = nn.RMSNorm(config.dim, eps=_NORM_EPS)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=_NORM_EPS)

    def forward(self, x: torch.Tensor, table: Table) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), table)
        return x + self.mlp(self.post_attention_layernorm(x))


class GroupTransformer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(GroupLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=_NORM_EPS) if config.post_norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[groups, group, dim] to the same shape; positions count within the group."""
        places = torch.arange(x.shape[1], device=x.device)
        table = rotary_table(places, self.config.rotary_dim, self.config.rope_theta, x.dtype)
        for layer in self.layers:
            x = layer(x, table)
        return self.norm(x)


class TwoLayerProjection(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, out, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x)


class SpeechEmbeddings(nn.ModuleList):
    """One table [vocabulary, dim] per code channel (`speech_embeddings.C.weight`)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(nn.Embedding(rows, config.dim) for rows in config.vocabularies)
        self.zero_ids = config.zero_ids

    @torch.no_grad()
    def clear_zero_rows(self) -> None:
        """Make the row of each channel's "no code" id read as zero, whatever the file holds."""
        for table, row in zip(self, self.zero_ids, strict=True):
            assert isinstance(table, nn.Embedding)
            if row < table.num_embeddings:
                table.weight[row] = 0

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Sum over channels of codes [..., channels], in float32 at least: [..., dim]."""
        total: torch.Tensor | None = None
        dtype = torch.float32
        for channel, table in enumerate(self):
            found = table(codes[..., channel])
            dtype = found.dtype
            wide = found.to(torch.promote_types(dtype, torch.float32))
            total = wide if total is None else total + wide
        assert total is not None
        return total.to(dtype)


class CodeEncoder(nn.Module):
    """Parameters carry the checkpoint's names (after its `audio_encoder.` prefix)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.group * config.dim
        self.input_local_transformer = GroupTransformer(config)
        self.projection: nn.Module = (
            nn.Linear(width, config.out_hidden, bias=False)
            if config.projection_layers == 1
            else TwoLayerProjection(width, config.out_hidden)
        )

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        """Rows [groups, out_hidden] of embedded code frames [groups, group, dim]."""
        return self.projection(self.input_local_transformer(embedded).flatten(1))


def group_codes(codes: torch.Tensor, group: int) -> torch.Tensor:
    """Codes [n, channels] of one sound as [ceil(n / group), group, channels].

    The last group is filled by repeating the last code frame.
    """
    missing = -codes.shape[0] % group
    if missing:
        codes = torch.cat([codes, codes[-1:].expand(missing, -1)])
    return codes.unflatten(0, (-1, group))
