"""SGLang platform plugin for machines without an accelerator.

Registered under the entry point group ``sglang.srt.platforms``; see docs/sglang-patches.md.
"""

from __future__ import annotations


def activate() -> str | None:
    """The platform class's dotted name, or None where a CUDA device is present."""
    import torch

    if torch.cuda.is_available():
        return None
    return "llm.cpu.platform.CpuEnginePlatform"
