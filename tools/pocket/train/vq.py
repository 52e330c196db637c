"""Training of a residual quantiser: straight-through codes, codebooks by moving averages."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from encoders.audio.quantizer import ResidualQuantizer

DECAY = 0.98
DEAD = 0.03  # a code used less than this share of the mean is put elsewhere


class QuantizerTrainer(nn.Module):
    """Moving averages beside the codebooks of a ``ResidualQuantizer``, which it overwrites.

    ``averages`` [stages, codes, dim] and ``counts`` [stages, codes] are the checkpoint's
    ``embed_avg`` and ``cluster_size``. Nothing is quantised before ``fill``. All codebooks must be
    of one size.
    """

    averages: torch.Tensor
    counts: torch.Tensor
    filled: torch.Tensor

    def __init__(self, quantizer: ResidualQuantizer) -> None:
        super().__init__()
        self.codebooks = quantizer.codebooks
        for codebook in self.codebooks:
            codebook.embed.requires_grad_(False)
            nn.init.zeros_(codebook.embed)
        shape = self.codebooks[0].embed.shape
        self.register_buffer("averages", torch.zeros(len(self.codebooks), *shape))
        self.register_buffer("counts", torch.ones(len(self.codebooks), shape[0]))
        self.register_buffer("filled", torch.zeros(1))

    @torch.no_grad()
    def fill(self, latents: torch.Tensor) -> None:
        """Start every stage's codes at rows of what the stages before leave of ``latents``."""
        residual = latents.float()
        for stage, codebook in enumerate(self.codebooks):
            count = codebook.embed.shape[0]
            picked = torch.randperm(residual.shape[0])[:count]
            picked = picked.repeat(-(-count // picked.shape[0]))[:count]
            codebook.embed.copy_(residual[picked])
            self.averages[stage] = codebook.embed
            self.counts[stage] = 1.0
            residual = residual - codebook.embed[codebook.nearest(residual)]
        self.filled.fill_(1.0)

    def forward(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantised latents with the gradient of ``latents``, and the commitment loss.

        Before ``fill``: the latents as they are and 0. In training mode the codebooks move.
        """
        if not self.filled.item():
            return latents, latents.new_zeros(())
        exact = latents.float()
        residual, total = exact.detach(), torch.zeros_like(exact)
        for stage, codebook in enumerate(self.codebooks):
            chosen = codebook.nearest(residual)
            if self.training:
                self._move(stage, residual, chosen)
            found = codebook.embed[chosen]
            residual, total = residual - found, total + found
        commitment = F.mse_loss(exact, total.detach())
        return exact + (total - exact).detach(), commitment

    @torch.no_grad()
    def _move(self, stage: int, residual: torch.Tensor, chosen: torch.Tensor) -> None:
        counts, averages = self.counts[stage], self.averages[stage]
        used = torch.bincount(chosen, minlength=counts.shape[0]).to(counts.dtype)
        sums = torch.zeros_like(averages).index_add_(0, chosen, residual)
        counts.mul_(DECAY).add_(used, alpha=1 - DECAY)
        averages.mul_(DECAY).add_(sums, alpha=1 - DECAY)
        dead = counts < DEAD * counts.mean()
        if dead.any():
            # A fresh code gets a tenth of a mean code's weight: it lives if it is used soon.
            rows = residual[torch.randint(residual.shape[0], (int(dead.sum()),))]
            weight = 0.1 * counts.mean()
            averages[dead] = rows * weight
            counts[dead] = weight
        self.codebooks[stage].embed.copy_(averages / counts.clamp(min=1e-6)[:, None])

    @property
    def usage(self) -> float:
        """Share of all codes that carry at least a tenth of the mean load."""
        alive = self.counts > 0.1 * self.counts.mean(dim=1, keepdim=True)
        return float(alive.float().mean())
