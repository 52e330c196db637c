"""Initial values of a trunk that is to be trained (not the showy ones of tools.pocket.layout)."""

from __future__ import annotations

import torch
from torch import nn

from tools.pocket.trunk.model import Trunk

EMBED_STD = 0.2
HEAD_STD = 0.02
GATE_STD = 0.02


@torch.no_grad()
def initialise(trunk: Trunk, seed: int) -> None:
    """Linear weights of standard deviation fan_in^-0.5; those that add to the residual stream are
    divided by the square root of the number of branches. Norms 1, sinks and biases 0."""
    generator = torch.Generator().manual_seed(seed)
    branches = (2 * len(trunk.layers)) ** 0.5
    for name, parameter in trunk.named_parameters():
        if parameter.dim() == 1:
            continue
        std = parameter.shape[-1] ** -0.5
        if name == "embed.weight":
            std = EMBED_STD
        elif name == "head.weight":
            std = HEAD_STD
        elif name.endswith("mlp.gate"):
            std = GATE_STD
        elif name.endswith(("o_proj.weight", "mlp.down.weight", "mlp.down")):
            std /= branches
        nn.init.normal_(parameter, std=std, generator=generator)
