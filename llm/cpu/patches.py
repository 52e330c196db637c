"""Every place where the CPU platform replaces something of SGLang: one table, applied here.

A missing name stops the start with a sentence: a patch that silently misses would surface as
wrong tokens. docs/sglang-patches.md lists the same rows with their reasons.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

import torch

from llm.cpu import host_pool, moe, mtp_steps, operators, sampling, seeds, slots, speculative
from llm.version import PINNED_SGLANG


@dataclass(frozen=True)
class Patch:
    """Replace ``module.attribute`` (attribute may be ``Class.method``) by ``replacement``.

    Modules that imported the old object by name are updated too. Where the old value is None
    (no kernel on this platform) they cannot be found, so ``also`` names them. With ``wraps``,
    ``replacement`` is called with the old function (of a class method, the plain function) and
    returns the new one.
    """

    module: str
    attribute: str
    replacement: Any
    also: tuple[str, ...] = ()
    wraps: bool = False


_OPS = "sglang.kernels.ops"
_EAGLE = "sglang.srt.speculative.eagle_utils"
_WORKER = "sglang.srt.speculative.multi_layer_eagle_worker_v2"


def _engine_patches() -> list[Patch]:
    return [
        Patch(f"{_OPS}.speculative.multi_layer_eagle", "rotate_input_ids",
              speculative.rotate_input_ids),
        Patch(f"{_OPS}.speculative.spec_tree", "build_tree_kernel_efficient_func",
              speculative.build_chain),
        Patch(f"{_OPS}.speculative.spec_tree", "verify_tree_greedy_func",
              speculative.verify_greedy),
        Patch(f"{_OPS}.speculative.verify_sampling", "tree_speculative_sampling_target_only",
              speculative.verify_sampling, also=(_EAGLE,)),
        Patch(f"{_OPS}.speculative.verify_sampling", "chain_speculative_sampling_triton",
              speculative.verify_rejection),
        Patch(f"{_OPS}.speculative.eagle", "fill_bonus_tokens_func",
              speculative.fill_bonus_tokens),
        Patch(f"{_OPS}.speculative.eagle", "fill_accept_out_cache_loc_func",
              slots.fill_accept_cache_locs),
        Patch(f"{_OPS}.speculative.cache_locs", "assign_draft_cache_locs_contiguous_func",
              slots.assign_draft_cache_locs),
        Patch(f"{_OPS}.speculative.cache_locs", "fill_front_out_cache_loc_func",
              slots.fill_front_cache_locs),
        Patch(f"{_OPS}.speculative.row_argmax", "row_argmax", sampling.row_argmax),
        Patch(f"{_OPS}.sampling.renorm", "top_k_renorm_prob", sampling.top_k_renorm,
              also=("sglang.srt.layers.sampler", _EAGLE)),
        Patch(f"{_OPS}.sampling.renorm", "top_p_renorm_prob", sampling.top_p_renorm,
              also=("sglang.srt.layers.sampler", _EAGLE)),
        Patch(f"{_OPS}.sampling.murmur_hash", "murmur_hash32", sampling.murmur_hash32),
        Patch("sglang.srt.sampling.sampling_batch_info",
              "SamplingBatchInfo.from_schedule_batch", seeds.with_seeds, wraps=True),
        Patch("sglang.srt.layers.sampler", "top_k_top_p_min_p_sampling_from_probs_torch",
              seeds.with_min_p, wraps=True),
        Patch("sglang.srt.mem_cache.allocation", "assign_req_to_token_pool_func",
              slots.assign_req_to_token),
        Patch("sglang.srt.mem_cache.memory_pool", "MHATokenToKVPool._init_kv_copy_and_warmup",
              _no_kv_copy),
    ]  # fmt: skip


def _host_pool_patches() -> list[Patch]:
    pools = "sglang.srt.mem_cache.pool_host"
    return [
        Patch(f"{pools}.common", "alloc_with_host_register", host_pool.allocate),
        Patch(f"{pools}.base", "HICACHE_HOST_MEMORY_RESERVE_BYTES", host_pool.RESERVE_BYTES),
        Patch(f"{pools}.mha", "MHATokenToKVPoolHost.load_to_device_per_layer",
              host_pool.load_layer),
        Patch(f"{pools}.mha", "MHATokenToKVPoolHost.backup_from_device_all_layer",
              host_pool.store_layers),
        Patch(f"{pools}.mha", "AsymmetricMHATokenToKVPoolHost.load_to_device_per_layer",
              host_pool.load_layer),
        Patch(f"{pools}.mha", "AsymmetricMHATokenToKVPoolHost.backup_from_device_all_layer",
              host_pool.store_layers),
    ]  # fmt: skip


def _speculative_patches() -> list[Patch]:
    return [
        Patch(_EAGLE, "default_tree_mask_mode", _chain_mask_mode),
        Patch("sglang.srt.speculative.draft_utils",
              "DraftBackendFactory.create_draft_extend_backend", _draft_extend_backend),
        Patch("sglang.srt.speculative.spec_utils", "commit_mamba_states_after_verify", _nothing),
        Patch(_WORKER, "MultiLayerEagleDraftWorker.draft", mtp_steps.draft, wraps=True),
        Patch(_WORKER, "MultiLayerEagleDraftWorker._draft_extend_for_decode",
              mtp_steps.draft_extend, wraps=True),
        Patch(_WORKER, "MultiLayerEagleWorkerV2.verify", mtp_steps.verify),
        Patch(_WORKER, "MultiLayerEagleWorkerV2.forward_batch_generation",
              mtp_steps.with_policy, wraps=True),
        Patch("sglang.srt.managers.scheduler_components.internal_state",
              "SchedulerInternalStateController._add_speculative", mtp_steps.with_state,
              wraps=True),
    ]  # fmt: skip


def apply_engine() -> None:
    """Patch what every engine worker needs; called while SGLang's model runner is imported."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    def create(runner: Any) -> Any:
        from llm.cpu.attention import CpuAttentionBackend

        return CpuAttentionBackend(runner)

    register_attention_backend("torch_native")(create)
    torch.cuda.synchronize = _nothing
    torch.cuda.empty_cache = _nothing
    apply(_engine_patches() + _host_pool_patches())


def apply_speculative() -> None:
    """Patch what only the draft worker needs, and what its imports had bound early."""
    apply(_engine_patches() + _speculative_patches())


def apply_model(model: Any) -> None:
    """Give a model whose weights are loaded to the decoder kernel; where that is not possible,
    give its operators our forms."""
    from llm.cpu.attach import attach_decoder

    if attach_decoder(model):
        return
    from sglang.kernels.fused_op import BaseFusedOp
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

    # The key is the platform's get_dispatch_key_name().
    BaseFusedOp.register_oot_forward(UnquantizedFusedMoEMethod, moe.forward, "native")
    BaseFusedOp.register_oot_forward(RMSNorm, operators.rms_norm, "native")
    BaseFusedOp.register_oot_forward(RotaryEmbedding, operators.rotary, "native")
    apply([Patch("sglang.srt.layers.moe.topk", "biased_grouped_topk_impl",
                 operators.one_group_router, wraps=True)])  # fmt: skip


def apply(patches: list[Patch]) -> None:
    """Apply patches; applying twice is the same as once.

    Raises RuntimeError naming the first symbol that SGLang does not have.
    """
    for patch in patches:
        module = importlib.import_module(patch.module)
        owner: Any = module
        *path, name = patch.attribute.split(".")
        try:
            for part in path:
                owner = getattr(owner, part)
            original = getattr(owner, name)
        except AttributeError:
            raise RuntimeError(
                f"{patch.module}.{patch.attribute} does not exist; "
                f"the CPU platform is written for sglang=={PINNED_SGLANG}"
            ) from None
        if patch.wraps:
            _wrap(owner, name, original, patch.replacement)
        elif original is not patch.replacement:
            setattr(owner, name, patch.replacement)
            if original is not None:
                _rebind(original, patch.replacement)
        for consumer in patch.also:
            if consumer in sys.modules:
                setattr(sys.modules[consumer], name, patch.replacement)


def _wrap(owner: Any, name: str, original: Any, wrapper: Any) -> None:
    function = getattr(original, "__func__", original)
    if getattr(function, "_omniserve", False):
        return
    wrapped = wrapper(function)
    wrapped._omniserve = True
    if function is original:
        setattr(owner, name, wrapped)
        _rebind(original, wrapped)
    else:
        setattr(owner, name, classmethod(wrapped))


def _rebind(original: object, replacement: object) -> None:
    """Update every SGLang module that holds ``original`` under some name."""
    for name, module in list(sys.modules.items()):
        if module is None or not name.startswith("sglang."):
            continue
        for attribute, value in list(vars(module).items()):
            if value is original:
                setattr(module, attribute, replacement)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """A CPU has no stream to drain and no device cache to empty, MiMo-V2 no recurrent state."""


def _no_kv_copy(self: Any) -> None:
    """The tiled device copy moves draft trees, which the chain never needs."""
    self._kv_copy_config = None


def _chain_mask_mode() -> Any:
    """A mask over the drafted rows only; the full one grows with the context, unread."""
    from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode

    return TreeMaskMode.QLEN_ONLY


def _draft_extend_backend(self: Any) -> Any:
    from llm.cpu.attention import CpuAttentionBackend

    backend = CpuAttentionBackend(self.draft_model_runner)
    backend.prefill_attention_backend_str = "torch_native"
    backend.decode_attention_backend_str = "torch_native"
    return backend
