"""The MTP draft model: SGLang's, with our reading of fused projections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.models import mimo_v2_nextn

from llm.models.fused_qkv import split_fused

if TYPE_CHECKING:
    from llm.cpu.draft import NativeDraft


class MiMoV2MTP(mimo_v2_nextn.MiMoV2MTP):
    """One draft layer of MiMo-V2; SGLang builds one instance per layer.

    ``decoder``: set on a CPU (llm/cpu/patches.py); runs the layer in two calls.
    """

    decoder: NativeDraft | None = None

    def load_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], is_nextn: bool = False
    ) -> None:
        super().load_weights(split_fused(weights, self.config), is_nextn)

    @torch.no_grad()
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any) -> Any:
        if self.decoder is None:
            return super().forward(input_ids, positions, forward_batch)
        hidden, before_norm = self.decoder.forward(
            input_ids,
            forward_batch.spec_info.hidden_states,
            self.model.embed_tokens.weight,
            forward_batch,
            get_attn_backend(),
        )
        return self.logits_processor(
            input_ids,
            hidden,
            self.lm_head,
            forward_batch,
            hidden_states_before_norm=(
                before_norm if forward_batch.return_hidden_states_before_norm else None
            ),
        )


EntryClass = MiMoV2MTP
