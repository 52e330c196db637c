"""Handing a loaded model to the decoder kernel."""

from __future__ import annotations

import logging
import os
from typing import Any

from llm.cpu.decoder import NativeDecoder, Unsupported
from llm.cpu.draft import NativeDraft
from llm.cpu.native import kernel

logger = logging.getLogger(__name__)


def attach_decoder(model: Any) -> bool:
    """Give ``model`` its decoder; False where SGLang's own layers have to run it.

    That is the case for other classes than ours, without a built kernel, for what the kernel
    cannot do, and when the model's configuration says ``"decoder_kernel": false`` (an entry of
    SGLang's ``json_model_override_args``, to compare the two). Its ``"decoder_threads"`` is the
    number of threads; without it there is one for each core that this process may use.
    """
    from llm.models.mimo_v2 import MiMoV2ForCausalLM
    from llm.models.mimo_v2_mtp import MiMoV2MTP

    if not isinstance(model, MiMoV2ForCausalLM | MiMoV2MTP):
        return False
    if not getattr(model.config, "decoder_kernel", True):
        return False
    native = kernel()
    if native is None:
        return False
    threads = getattr(model.config, "decoder_threads", None)
    native.use_threads(threads or len(os.sched_getaffinity(0)))
    dtype = model.lm_head.weight.dtype
    try:
        if isinstance(model, MiMoV2MTP):
            model.decoder = NativeDraft(native, model.model, dtype)
        else:
            stack = model.model
            model.decoder = NativeDecoder(native, list(stack.layers), stack.norm, dtype)
    except Unsupported as reason:
        logger.warning("the language model runs in plain PyTorch: %s", reason)
        return False
    return True
