"""Hooks of ours that SGLang runs in every one of its processes (``sglang.srt.plugins``)."""

from __future__ import annotations

import os
from typing import Any

PROCESSOR_PACKAGE = "llm.processors"


def register() -> None:
    """Register hooks that spare an engine process what it never uses and name its choices.

    Active only where our processor is selected, so that a plain SGLang server in the same
    environment keeps its own behaviour.
    """
    if os.environ.get("SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE") != PROCESSOR_PACKAGE:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from llm import handover, tiers_tree
    from llm.page_hash import page_hashes
    from llm.queue import engine as queue_hooks
    from llm.request_ids import next_part
    from llm.router import engine_probe
    from llm.version import check_sglang_version

    check_sglang_version()
    HookRegistry.register(
        "sglang.srt.managers.multimodal_processor.import_processors",
        _import_processors,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.srt.utils.hf_transformers.processor.get_processor",
        _tokenizer_as_processor,
        HookType.REPLACE,
    )
    HookRegistry.register(
        "sglang.srt.managers.io_struct.GenerateReqInput.regenerate_rid",
        next_part,
        HookType.REPLACE,
    )
    queue_hooks.register(HookRegistry, HookType)
    engine_probe.register(HookRegistry, HookType)
    HookRegistry.register(
        "sglang.srt.mem_cache.cpp_utils.native_hash.get_native_hash",
        page_hashes,
        HookType.REPLACE,
    )
    tiers_tree.register(HookRegistry, HookType)
    handover.register()


def _import_processors(original: Any, package_name: str, overwrite: bool = False) -> None:
    """Import our one processor instead of SGLang's seventy."""
    original(PROCESSOR_PACKAGE, overwrite=True)


def _tokenizer_as_processor(
    tokenizer_path: str,
    *,
    tokenizer_mode: str = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
    tokenizer_backend: str = "huggingface",
    **_: Any,
) -> Any:
    """The tokenizer alone: no pixel or sound is processed in an engine process."""
    from sglang.srt.utils.hf_transformers import get_tokenizer

    return get_tokenizer(
        tokenizer_path,
        tokenizer_mode=tokenizer_mode,
        trust_remote_code=trust_remote_code,
        revision=revision,
        tokenizer_backend=tokenizer_backend,
    )
