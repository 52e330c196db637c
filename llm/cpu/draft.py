"""One MTP layer run by the decoder kernel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from llm.cpu.decoder import NativeDecoder, Unsupported, is_narrow
from llm.cpu.native import Draft, Kernel, pack


class NativeDraft:
    """The input projection of an MTP layer and its decoder layer.

    Takes over the weights of SGLang's module (``MiMoV2ModelNextN``). Raises Unsupported like
    NativeDecoder, before it has touched any.
    """

    def __init__(self, kernel: Kernel, module: Any, dtype: torch.dtype) -> None:
        if module.eh_proj.weight.dtype != dtype or module.eh_proj.bias is not None:
            raise Unsupported("the input projection has another type or a bias")
        self.kernel = kernel
        self.decoder = NativeDecoder(kernel, [module.mtp_block], module.final_layernorm, dtype)
        self._embedding_norm = module.enorm.weight.detach().float()
        self._state_norm = module.hnorm.weight.detach().float()
        self._epsilon = module.enorm.variance_epsilon
        projection = module.eh_proj.weight.detach()
        narrow = is_narrow(projection)
        self._projection = pack(projection.bfloat16() if narrow else projection)
        module.eh_proj.weight.data = torch.empty(0, dtype=dtype)

    def forward(
        self,
        ids: torch.Tensor,
        state: torch.Tensor,
        embeddings: torch.Tensor,
        forward_batch: Any,
        backend: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Final hidden states [T, H] after and before the last norm.

        ``ids`` [T] may hold media sentinels outside the vocabulary: their embedding is
        meaningless and only ``state`` [T, H] counts there, the target's hidden states.
        ``embeddings`` [V, H]; ``forward_batch`` may be the verify pass of the same rows.
        """
        rows = F.embedding(ids.clamp(0, embeddings.shape[0] - 1), embeddings)
        both = self.kernel.draft_input(
            rows.float(),
            state.float(),
            self._embedding_norm,
            self._state_norm,
            self._epsilon,
        )
        projected = self.kernel.linear(both, self._projection, self.decoder.hidden)
        return self.decoder.forward(projected, forward_batch, backend)

    def fill(self, entry: Draft) -> None:
        """Describe this layer to the kernel; its decoder is bound to a pool already."""
        entry.decoder = self.decoder.model
        entry.embedding_norm = self._embedding_norm.data_ptr()
        entry.state_norm = self._state_norm.data_ptr()
        entry.projection = self._projection.data_ptr()
        entry.narrow_projection = int(self._projection.dtype == torch.bfloat16)
