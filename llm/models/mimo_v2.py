"""MiMo-V2 language models without the encoders, which run in deployments of their own."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from sglang.srt.managers.mm_utils import prepare_mm_inputs
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.models import mimo_v2

from llm.models.fused_qkv import split_fused

if TYPE_CHECKING:
    from llm.cpu.decoder import NativeDecoder

_ENCODER_PREFIXES = ("visual.", "audio_encoder.", "audio_tokenizer.", "speech_embeddings.")


class MiMoV2ForCausalLM(mimo_v2.MiMoV2ForCausalLM):
    """SGLang's MiMo-V2, fed with embedding rows at image, video and audio positions.

    SGLang builds its vision tower and audio encoder whenever the configuration has their
    sections, and the audio encoder needs CUDA. Here neither is built nor loaded.

    ``decoder``: set on a CPU (llm/cpu/patches.py); runs all layers in one call.
    """

    decoder: NativeDecoder | None = None

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        text_only = copy.copy(config)
        text_only.vision_config = text_only.audio_config = None
        super().__init__(text_only, *args, **kwargs)
        self.config = config
        # Rows still have to be placed: prefill takes the multimodal embedding path.
        self._is_multimodal = True

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        text = ((name, w) for name, w in weights if not name.startswith(_ENCODER_PREFIXES))
        super().load_weights(split_fused(text, self.config))

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        if self.decoder is None:
            return super().forward(
                input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors
            )
        mode = forward_batch.forward_mode
        if mode.is_decode() or mode.is_target_verify():
            embeddings = F.embedding(input_ids, self.model.embed_tokens.weight)
        else:
            embeddings = prepare_mm_inputs(
                input_ids, forward_batch, self.model, {}, multimodal_model=self
            )
        hidden, before_norm = self.decoder.forward(embeddings, forward_batch, get_attn_backend())
        return self.logits_processor(
            input_ids,
            hidden,
            self.lm_head,
            forward_batch,
            hidden_states_before_norm=(
                before_norm if forward_batch.return_hidden_states_before_norm else None
            ),
        )

    def get_image_feature(self, items: list[Any]) -> torch.Tensor:
        raise RuntimeError("the engine was given pixels; it takes embedding rows only")

    get_video_feature = get_image_feature
    get_audio_feature = get_image_feature


class MiMoV2FlashForCausalLM(MiMoV2ForCausalLM):
    """The text-only V2-Flash under its own architecture name."""


EntryClass = [MiMoV2ForCausalLM, MiMoV2FlashForCausalLM]
