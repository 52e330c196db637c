"""Pools as settings: what is refused, and what reaches the engines."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from app.settings import ROOT, SettingsError, parse_settings
from llm.arguments import engine_arguments
from llm.disaggregation.replica import free_port

GPU = yaml.safe_load((ROOT / "configs/mimo-v2.5-gpu.yaml").read_text())


def llm(disaggregation: dict[str, Any], **more: Any) -> Any:
    document = copy.deepcopy(GPU)
    document["llm"] |= {"disaggregation": {"enabled": True, **disaggregation}, **more}
    return parse_settings(document, "test").llm


def test_pools_are_deployments_that_scale_by_themselves() -> None:
    scaling = {"min_replicas": 2, "max_replicas": 9, "target_ongoing_requests": 4}
    found = llm(
        {"prefill": {"autoscaling": scaling}, "decode": {"replicas": 3, "mem_fraction": 0.8}}
    ).deployments()
    assert list(found) == ["LLM", "LLMDecode"]
    assert found["LLM"].deployment_options()["autoscaling_config"]["max_replicas"] == 9
    assert found["LLMDecode"].deployment_options()["num_replicas"] == 3
    assert (found["LLM"].mem_fraction, found["LLMDecode"].mem_fraction) == (0.65, 0.8)


def test_each_role_has_its_engine_arguments() -> None:
    settings = llm({"backend": "nixl", "ib_device": "mlx5_0"}).model_dump()
    settings |= {"model_path": str(ROOT / "models/pocket"), "served_name": "m"}
    assert "disaggregation_mode" not in engine_arguments(settings)
    prefill = engine_arguments(settings | {"role": "prefill", "bootstrap_port": 4001})
    decode = engine_arguments(settings | {"role": "decode"})
    for role, arguments in (("prefill", prefill), ("decode", decode)):
        assert arguments["disaggregation_mode"] == role
        assert arguments["disaggregation_transfer_backend"] == "nixl"
        assert arguments["disaggregation_decode_allocation_policy"] == "prefill_complete"
        assert arguments["disaggregation_ib_device"] == "mlx5_0"
    assert prefill["disaggregation_bootstrap_port"] == 4001
    assert decode["num_reserved_decode_tokens"] == 512


def test_sglang_knows_every_argument() -> None:
    from sglang.srt.server_args import ServerArgs

    settings = llm({}).model_dump() | {
        "model_path": str(ROOT / "models/pocket"),
        "served_name": "m",
    }
    names = (
        set(ServerArgs.__struct_fields__)
        if hasattr(ServerArgs, "__struct_fields__")
        else set(ServerArgs.__dataclass_fields__)
    )
    for role in ({"role": "prefill", "bootstrap_port": 4001}, {"role": "decode"}):
        given = {n for n in engine_arguments(settings | role) if "disagg" in n or "reserved" in n}
        assert given <= names


@pytest.mark.parametrize(
    ("disaggregation", "more", "message"),
    [
        ({}, {"device": "cpu", "max_total_tokens": 4096}, "device is 'cpu'"),
        ({}, {"page_size": 1}, "must be above 1"),
        ({"host_receive_threshold": 0.5}, {}, "neither mooncake nor nixl"),
        ({"backend": "carrier pigeon"}, {}, "backend"),
        (
            {},
            {"buckets": {"classes": [{"up_to_tokens": 10}, {"up_to_tokens": 20}]}},
            "buckets.classes must be empty",
        ),
        (
            {
                "decode": {
                    "autoscaling": {
                        "min_replicas": 0,
                        "max_replicas": 1,
                        "target_ongoing_requests": 1,
                    }
                }
            },
            {},
            "a pool of a pair needs at least 1",
        ),
        (
            {},
            {"extra_engine_args": {"disaggregation_mode": "decode"}},
            "extra_engine_args holds 'disaggregation_mode'",
        ),
    ],
)
def test_what_cannot_run_is_refused(
    disaggregation: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        llm(disaggregation, **more)


def test_bootstrap_ports_differ() -> None:
    assert 1024 <= free_port() <= 65_535
