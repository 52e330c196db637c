"""The KV tiers below device memory: from the settings to SGLang's arguments."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llm.store.namespace import digest_of, weights_identity
from llm.tiers_tree import OPTIONS


def tier_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """SGLang's engine arguments for ``settings["tiers"]`` of the ``llm`` section.

    With a store it reads the checkpoint, once, for the weights' identity.
    """
    tiers = settings.get("tiers")
    if not tiers:
        return {}
    extra: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    if tiers["swa_tails"]:
        extra[OPTIONS] = {"swa_tails": tiers["swa_tails"]}
    host, store = tiers["host"], tiers["store"]
    if host is not None:
        arguments |= {
            "enable_hierarchical_cache": True,
            "hicache_ratio": host["ratio"],
            "hicache_size": host["gigabytes"] or 0,
            "hicache_write_policy": host["write_policy"],
        }
        if settings["device"] == "cpu":
            # The one pair that SGLang allows for keys and values of different width.
            arguments |= {
                "hicache_io_backend": "direct",
                "hicache_mem_layout": "page_first_direct",
            }
    if store is not None:
        mooncake = store["backend"] == "mooncake"
        extra |= _mooncake(settings, store) if mooncake else _node(settings, store)
        extra["prefetch_threshold"] = store["min_tokens"]
        extra["prefetch_timeout_base"] = store["timeout_s"]
        extra.setdefault(OPTIONS, {})["touch_interval_s"] = store["touch_interval_s"]
        arguments |= {
            "hicache_storage_backend": "mooncake" if mooncake else "dynamic",
            "hicache_storage_prefetch_policy": store["prefetch"],
        }
    if extra:
        arguments["hicache_storage_backend_extra_config"] = json.dumps(extra)
    return arguments


def _node(settings: dict[str, Any], store: dict[str, Any]) -> dict[str, Any]:
    names = ("memory_path", "memory_bytes", "disk_path", "disk_bytes", "timeout_s")
    return {
        "backend_name": "node",
        "module_path": "llm.store.storage",
        "class_name": "NodeStorage",
        "interface_v1": 1,
        "store": {name: store[name] for name in names} | {"facts": _facts(settings)},
    }


def _mooncake(settings: dict[str, Any], store: dict[str, Any]) -> dict[str, Any]:
    """Mooncake's own options; its keys get our namespace through the one prefix it offers."""
    return {"extra_backend_tag": digest_of(_facts(settings)).hex()[:32]} | store["mooncake"]


def _facts(settings: dict[str, Any]) -> dict[str, Any]:
    """What the bytes of a page depend on besides its tokens."""
    names = (
        "device",
        "dtype",
        "kv_cache_dtype",
        "page_size",
        "tensor_parallel",
        "attention_data_parallel",
        "expert_parallel",
        "window_counts_self",
    )
    mtp = settings["mtp"]
    return {
        "weights": weights_identity(Path(settings["model_path"])),
        "engine": version("sglang"),
        "draft_layers": mtp["steps"] if mtp["enabled"] else 0,
        **{name: settings[name] for name in names},
    }


async def tier_stats(manager: Any) -> list[dict[str, Any]]:
    """Counters of the tiers, one set per group of data-parallel attention.

    ``manager``: SGLang's tokenizer manager. Each set has ``tokens`` (of prompts that have finished:
    all, and those found on the device, on the host and in the store), with L2 ``moving`` (prefixes
    on their way between tiers) and ``host`` (slots of each pool), and with our L3 ``store``
    (`Tier.stats` of each tier).
    """
    return [state["tiers"] for state in await manager.get_internal_state() if "tiers" in state]
