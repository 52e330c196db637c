"""The platform class through which SGLang runs on a CPU without ``sgl_kernel``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from llm.version import check_sglang_version


class CpuEnginePlatform(SRTPlatform, CpuDeviceMixin):
    """Plain PyTorch in the place of SGLang's device kernels.

    Identifies as out-of-tree, so SGLang takes neither its CUDA kernels nor its own CPU path,
    which needs an extension module that is not published for pip.
    """

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        return "torch_native"

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm == "EAGLE"

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return algorithm == "EAGLE" and backend == "torch_native"

    def get_speculative_cache_locs_fn(self) -> Callable[..., torch.Tensor]:
        from llm.cpu.slots import extend_cache_locs

        return extend_cache_locs

    def get_speculative_worker_cls(self, algorithm: str) -> type[Any] | None:
        # Called in the scheduler process just before the draft worker is built: the last
        # moment, and the first at which the speculative modules import without a cycle.
        from llm.cpu.patches import apply_speculative

        apply_speculative()
        return None

    def init_backend(self) -> None:
        from llm.cpu.patches import apply_engine

        check_sglang_version()
        apply_engine()

    def post_load_model(self, model: torch.nn.Module) -> None:
        from llm.cpu.patches import apply_model

        apply_model(model)

    def get_dispatch_key_name(self) -> str:
        return "native"
