"""From the ``llm`` section of the settings to SGLang's engine arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm.disaggregation.arguments import role_arguments
from llm.pool_choice import PoolChoice, choose
from llm.queue.engine import schedule_policy
from llm.tiers import tier_arguments


def pool_choice(settings: dict[str, Any]) -> PoolChoice:
    """KV pools of the ``llm`` section for the checkpoint at ``model_path``."""
    return choose(settings, _model_config(settings))


def _model_config(settings: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(settings["model_path"]) / "config.json").read_text())
    return found


def engine_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for SGLang's Engine.

    ``settings``: the ``llm`` section as plain data, plus ``model_path`` and ``served_name``.

    The family's public implementations disagree about the sliding window. SGLang and transformers
    let a query see ``sliding_window`` keys to its left and itself; the family's own remote code
    counts the query among them. The default is the former: it is what serves the published
    checkpoints in production, and which one they were trained with is not published. With
    ``window_counts_self`` the engine is given a window of one less.
    """
    mtp, queue = settings["mtp"], settings["queue"]
    pools = pool_choice(settings)
    arguments: dict[str, Any] = {
        "model_path": settings["model_path"],
        "served_model_name": settings["served_name"],
        "trust_remote_code": True,
        "device": settings["device"],
        "dtype": settings["dtype"],
        "kv_cache_dtype": settings["kv_cache_dtype"],
        "tp_size": settings["tensor_parallel"],
        "attn_dp_size": settings["attention_data_parallel"],
        "ep_size": settings["expert_parallel"],
        "context_length": settings["context_length"],
        "chunked_prefill_size": settings["chunked_prefill_size"],
        "page_size": settings["page_size"],
        "max_running_requests": settings["max_running_requests"],
        "max_queued_requests": settings["max_waiting_requests"],
        "max_total_tokens": pools.tokens,
        "mem_fraction_static": settings["mem_fraction"],
        "swa_full_tokens_ratio": pools.ratio,
        "reasoning_parser": settings["reasoning_parser"],
        "tool_call_parser": settings["tool_call_parser"],
        "default_chat_template_kwargs": settings["chat_template_kwargs"] or None,
        "enable_cache_report": True,
        "log_level": "warning",
    }
    if mtp["enabled"]:
        arguments |= {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": mtp["steps"],
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": mtp["steps"] + 1,
        }
    if queue["policy"] == "compute_aware":
        arguments["schedule_policy"] = schedule_policy(
            queue["penalty"], queue["head_start_tokens"], queue["chunk_share"]
        )
    if settings["device"] == "cpu":
        arguments |= {
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
            # Else the scheduler spins on a core that encoders and gateway could use.
            "sleep_on_idle": True,
        }
    arguments |= tier_arguments(settings)
    arguments |= role_arguments(settings)
    overrides: dict[str, Any] = {}
    if settings["window_counts_self"]:
        window = _model_config(settings)["sliding_window"] - 1
        overrides |= {"sliding_window": window, "sliding_window_size": window}
    if settings["device"] == "cpu":
        # The model's configuration is what reaches our code in the scheduler process.
        if mtp["enabled"] and not mtp.get("adaptive", True):
            overrides["mtp_adaptive"] = False
        if settings.get("decoder_threads") is not None:
            overrides["decoder_threads"] = settings["decoder_threads"]
    if overrides:
        arguments["json_model_override_args"] = json.dumps(overrides)
    return arguments | settings["extra_engine_args"]
