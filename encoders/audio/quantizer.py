"""Residual vector quantisation: nearest codebook row, subtract, next codebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn


class Codebook(nn.Module):
    """Code vectors `embed` [codes, dim]."""

    def __init__(self, codes: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(codes, dim))

    def nearest(self, x: torch.Tensor) -> torch.Tensor:
        """Index [n] of the row nearest to each x [n, dim] by Euclidean distance.

        |x - e|^2 without |x|^2, which is the same for all rows: one matrix product. Of equal
        distances the lowest index wins (argmin's rule).
        """
        return torch.addmm(self.embed.square().sum(1), x, self.embed.T, alpha=-2).argmin(1)


class ResidualQuantizer(nn.Module):
    """The codebooks of all stages, named as in the checkpoint (`vq.layers.Q._codebook.embed`).

    Runs in float32 whatever the rest of the tokenizer runs in.
    """

    def __init__(self, codebooks: Sequence[int], dim: int) -> None:
        super().__init__()
        stages = [nn.ModuleDict({"_codebook": Codebook(codes, dim)}) for codes in codebooks]
        self.vq = nn.ModuleDict({"layers": nn.ModuleList(stages)})

    @property
    def codebooks(self) -> list[Codebook]:
        stages = cast(nn.ModuleList, self.vq["layers"])
        return [cast(Codebook, cast(nn.ModuleDict, stage)["_codebook"]) for stage in stages]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Codes [n, stages] int64 of latents [n, dim]."""
        codebooks = self.codebooks
        residual = x.to(codebooks[0].embed.dtype)
        codes = []
        for codebook in codebooks:
            nearest = codebook.nearest(residual)
            residual = residual - codebook.embed[nearest]
            codes.append(nearest)
        return torch.stack(codes, dim=1)
