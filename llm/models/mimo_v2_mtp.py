"""The MTP draft model: SGLang's, with our reading of fused projections."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from sglang.srt.models import mimo_v2_nextn

from llm.models.fused_qkv import split_fused


class MiMoV2MTP(mimo_v2_nextn.MiMoV2MTP):
    """One draft layer of MiMo-V2; SGLang builds one instance per layer."""

    def load_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], is_nextn: bool = False
    ) -> None:
        super().load_weights(split_fused(weights, self.config), is_nextn)


EntryClass = MiMoV2MTP
