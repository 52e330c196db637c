"""From settings of the tiers to SGLang's arguments, and the identity of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from app.settings import ROOT, load_settings
from app.settings.tiers import TierSettings
from llm.store.namespace import digest_of, weights_identity
from llm.tiers import tier_arguments

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "tensor_parallel": 1,
    "attention_data_parallel": 1,
    "expert_parallel": 1,
    "window_counts_self": False,
    "mtp": {"enabled": True, "steps": 3},
    "page_size": 16,
}
DISK = {"disk_path": "/var/kv", "timeout_s": 0.25, "min_tokens": 32, "touch_interval_s": 5.0}


def write(folder: Path, seed: int = 0, big: int = 4) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"hidden_size": 4}')
    generator = torch.Generator().manual_seed(seed)
    tensors = {"a": torch.rand(big, 64, generator=generator), "b": torch.ones(3)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def arguments(folder: Path, **tiers: Any) -> dict[str, Any]:
    section = TierSettings.model_validate(tiers).model_dump()
    return tier_arguments(SETTINGS | {"model_path": str(folder), "tiers": section})


def extra(found: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(found["hicache_storage_backend_extra_config"])
    return parsed


def test_no_tiers_no_arguments(tmp_path: Path) -> None:
    assert arguments(tmp_path) == {}
    assert tier_arguments({"device": "cpu"}) == {}


def test_the_host_tier(tmp_path: Path) -> None:
    assert arguments(tmp_path, host={"ratio": 3.0, "write_policy": "write_back"}) == {
        "enable_hierarchical_cache": True,
        "hicache_ratio": 3.0,
        "hicache_size": 0,
        "hicache_write_policy": "write_back",
        "hicache_io_backend": "direct",
        "hicache_mem_layout": "page_first_direct",
    }


def test_tails_need_no_tier(tmp_path: Path) -> None:
    assert extra(arguments(tmp_path, swa_tails=[256, 1024])) == {
        "omniserve": {"swa_tails": [256, 1024]}
    }


def test_the_store_of_a_node(tmp_path: Path) -> None:
    found = arguments(write(tmp_path), host={}, store=DISK)
    assert found["hicache_storage_backend"] == "dynamic"
    options = extra(found)
    assert options["class_name"] == "NodeStorage"
    assert options["prefetch_threshold"] == 32
    assert options["prefetch_timeout_base"] == 0.25
    assert options["omniserve"] == {"touch_interval_s": 5.0}
    assert options["store"]["disk_path"] == "/var/kv"
    assert options["store"]["memory_path"] is None


def test_mooncake_as_configured_for_gpus(tmp_path: Path) -> None:
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStoreConfig

    llm = load_settings(ROOT / "configs" / "mimo-v2.5-gpu.yaml").llm.model_dump()
    found = tier_arguments(llm | {"model_path": str(write(tmp_path))})
    assert found["hicache_storage_backend"] == "mooncake"
    assert "hicache_io_backend" not in found
    options = extra(found)
    config = MooncakeStoreConfig.load_from_extra_config(options)
    assert (
        config.master_server_address == llm["tiers"]["store"]["mooncake"]["master_server_address"]
    )
    assert config.global_segment_size > 2**30
    other = tier_arguments(llm | {"model_path": str(write(tmp_path / "other", seed=1))})
    assert options["extra_backend_tag"] != extra(other)["extra_backend_tag"]


@pytest.mark.parametrize(
    "change",
    [
        {"mtp": {"enabled": False, "steps": 3}},
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"tensor_parallel": 2},
        {"page_size": 32},
        {"window_counts_self": True},
    ],
)
def test_each_of_these_has_keys_of_its_own(tmp_path: Path, change: dict[str, Any]) -> None:
    section = TierSettings.model_validate({"host": {}, "store": DISK}).model_dump()
    base = SETTINGS | {"model_path": str(write(tmp_path)), "tiers": section}

    def facts(settings: dict[str, Any]) -> bytes:
        return digest_of(extra(tier_arguments(settings))["store"]["facts"])

    assert facts(base) == facts(dict(reversed(base.items())))
    assert facts(base) != facts(base | change)


@pytest.mark.parametrize("whole_bytes", [2**30, 0])
def test_the_identity_of_weights(tmp_path: Path, whole_bytes: int) -> None:
    def identity(name: str, **options: int) -> str:
        return weights_identity(write(tmp_path / name, **options), whole_bytes)

    assert identity("one") == identity("copy")
    assert identity("one") != identity("retrained", seed=1)
    assert identity("one") != identity("larger", big=5)
    (tmp_path / "one" / "config.json").write_text('{"hidden_size": 8}')
    assert weights_identity(tmp_path / "one", whole_bytes) != identity("copy")


def test_no_weights_no_identity(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no"):
        weights_identity(tmp_path)


@pytest.mark.parametrize(
    ("tiers", "says"),
    [
        ({"store": DISK}, "store is given without host"),
        ({"host": {}, "store": {}}, "memory_path and disk_path are null"),
        ({"host": {}, "store": {"disk_path": "kv"}}, "disk_path is 'kv'; it must be an absolute"),
        (
            {"host": {}, "store": {"disk_path": "/kv", "memory_path": "/kv"}},
            "memory_path and disk_path are both '/kv'",
        ),
        ({"host": {}, "store": {"backend": "mooncake"}}, "mooncake lacks master_server_address"),
        (
            {"host": {}, "store": {"backend": "mooncake", "disk_path": "/kv"}},
            "belong to backend node, not mooncake",
        ),
        (
            {"host": {}, "store": DISK | {"mooncake": {"protocol": "tcp"}}},
            "mooncake holds options, but backend is node",
        ),
        ({"swa_tails": [512, 256]}, r"swa_tails is \[512, 256\]; it must be a rising list"),
        ({"swa_tails": [0]}, r"swa_tails is \[0\]"),
    ],
)
def test_settings_that_contradict_themselves(tiers: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TierSettings.model_validate(tiers)
