"""MiMo-V2 language models without the encoders, which run in deployments of their own."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.models import mimo_v2

from llm.models.fused_qkv import split_fused

_ENCODER_PREFIXES = ("visual.", "audio_encoder.", "audio_tokenizer.", "speech_embeddings.")


class MiMoV2ForCausalLM(mimo_v2.MiMoV2ForCausalLM):
    """SGLang's MiMo-V2, fed with embedding rows at image, video and audio positions.

    SGLang builds its vision tower and audio encoder whenever the configuration has their
    sections, and the audio encoder needs CUDA. Here neither is built nor loaded.
    """

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

    def get_image_feature(self, items: list[Any]) -> torch.Tensor:
        raise RuntimeError("the engine was given pixels; it takes embedding rows only")

    get_video_feature = get_image_feature
    get_audio_feature = get_image_feature


class MiMoV2FlashForCausalLM(MiMoV2ForCausalLM):
    """The text-only V2-Flash under its own architecture name."""


EntryClass = [MiMoV2ForCausalLM, MiMoV2FlashForCausalLM]
