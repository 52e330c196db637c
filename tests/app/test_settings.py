"""Settings: the shipped files load, and every mistake is named in a sentence."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from ray.serve.config import AutoscalingConfig

from app.settings import (
    ROOT,
    Settings,
    SettingsError,
    check_model,
    config_path,
    load_settings,
    parse_settings,
    read_model_config,
    resolve_path,
)
from tools.replay.fleets import fleet

POCKET = yaml.safe_load((ROOT / "configs/pocket.yaml").read_text())


def changed(path: str, value: Any) -> dict[str, Any]:
    """The pocket file with one key set."""
    document = copy.deepcopy(POCKET)
    *sections, last = path.split(".")
    target = document
    for section in sections:
        target = target.setdefault(section, {})
    target[last] = value
    return document


def error(document: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_settings(document, "x.yaml")
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "configs").glob("*.yaml")))
def test_every_shipped_file_loads(name: str) -> None:
    settings = load_settings(ROOT / "configs" / name)
    assert settings.model.served_name


def test_gpu_file_carries_the_recommended_engine_values() -> None:
    llm = load_settings(ROOT / "configs/mimo-v2.5-gpu.yaml").llm
    assert (llm.tensor_parallel, llm.num_gpus, llm.attention_data_parallel) == (8, 8, 2)
    assert (llm.mem_fraction, llm.chunked_prefill_size) == (0.65, 16384)
    assert (llm.reasoning_parser, llm.tool_call_parser) == ("mimo", "mimo")
    assert (llm.mtp.steps, llm.mtp.draft_tokens) == (3, 4)
    # What simulations of such nodes keep (docs/scale.md).
    limits = fleet(1).limits
    assert limits.chunk == llm.chunked_prefill_size
    assert limits.max_running == llm.max_running_requests
    assert llm.tiers is not None
    assert llm.tiers.swa_tails == list(limits.tails)


def test_pocket_fits_two_cores_and_its_checkpoint() -> None:
    settings = load_settings(ROOT / "configs/pocket.yaml")
    assert settings.reserved_cpus() <= 2
    check_model(settings, read_model_config(settings))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (
            "images.max_pixels",
            5,
            "x.yaml: images.max_pixels is 5; it must be a whole number from 1024 to 1000000000",
        ),
        (
            "gateway.max_body_bytes",
            "8",
            "x.yaml: gateway.max_body_bytes is '8'; "
            "it must be a whole number from 1024 to 17179869184",
        ),
        (
            "images.devise",
            "cpu",
            "x.yaml: images.devise is not a setting; did you mean device?",
        ),
        (
            "images.device",
            "tpu",
            "x.yaml: images.device is 'tpu'; it must be one of cpu, cuda, cuda:N, xpu and npu",
        ),
        (
            "audio.dtype",
            "int8",
            "x.yaml: audio.dtype is 'int8'; it must be one of 'float32', 'bfloat16', 'float16'",
        ),
        (
            "llm.mem_fraction",
            2,
            "x.yaml: llm.mem_fraction is 2; it must be a number above 0 and below 1, or null",
        ),
        ("llm.mtp.steps", 99, "x.yaml: llm.mtp.steps is 99; it must be a whole number from 1 to 8"),
        ("llm.mtp.enabled", 1, "x.yaml: llm.mtp.enabled is 1; it must be true or false"),
        (
            "fetch.schemes",
            ["http", "file"],
            "x.yaml: fetch.schemes[1] is 'file'; it must be one of 'http', 'https'",
        ),
        ("fetch.ports", ["80"], "x.yaml: fetch.ports[0] is '80'; it must be a whole number"),
        ("llm.num_cpus", None, "x.yaml: llm.num_cpus is null; it must be a number from 0 to 1024"),
        (
            "llm.tiers",
            {"store": {"disk_path": "/kv"}},
            "x.yaml: llm.tiers: store is given without host; pages reach it through host memory",
        ),
        (
            "llm.page_size",
            3,
            "x.yaml: llm: chunked_prefill_size is 512; it must be a multiple of page_size (3)",
        ),
        (
            "llm.kv_bytes",
            None,
            "x.yaml: llm: kv_bytes is null; on device cpu it must be a whole number, "
            "since there is no device memory to fill",
        ),
        (
            "llm.extra_engine_args",
            {"tp_size": 4},
            "x.yaml: llm: extra_engine_args holds 'tp_size', "
            "which has a setting of its own in 'llm'",
        ),
        (
            "images.autoscaling",
            {"min_replicas": 3, "max_replicas": 1, "target_ongoing_requests": 1},
            "x.yaml: images.autoscaling: min_replicas is 3; it must be at most max_replicas (1)",
        ),
        (
            "local.num_cpus",
            1,
            "x.yaml: local.num_cpus is 1; the deployments reserve 1.75 CPUs at least",
        ),
    ],
)
def test_one_mistake_is_one_sentence(path: str, value: Any, expected: str) -> None:
    assert error(changed(path, value)) == expected


def test_missing_keys_and_sections() -> None:
    document = copy.deepcopy(POCKET)
    del document["model"]["path"]
    del document["audio"]
    lines = error(document).splitlines()
    assert lines[0] == "x.yaml: model.path is missing; it must be text that is not empty"
    assert lines[1].startswith("x.yaml: audio is missing; it must be a section with the keys ")


def test_gateway_must_be_able_to_refuse() -> None:
    text = error(changed("gateway.max_concurrent_requests", 256))
    assert "gateway.max_ongoing_requests is 256; it must be above" in text


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_a_file_that_is_no_mapping(document: Any) -> None:
    assert error(document) == "x.yaml: the file must hold a mapping of sections"


def test_unreadable_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: [unclosed")
    with pytest.raises(SettingsError, match="not valid YAML"):
        load_settings(broken)


def test_values_are_cut_in_errors() -> None:
    assert len(error(changed("images.device", "x" * 5000))) < 300


def test_swa_pool_must_hold_a_chunk_and_all_windows() -> None:
    # sglang-cpu.md section 2: a smaller pool stalls the engine without an error.
    config = read_model_config(parse_settings(changed("llm.kv_bytes", 1 << 27), "x.yaml"))
    small = parse_settings(changed("llm.kv_bytes", 1 << 25), "x.yaml")
    with pytest.raises(SettingsError, match=r"llm\.kv_bytes is 33554432: .* and 16 shall run"):
        check_model(small, config)
    document = changed("llm.kv_bytes", None)
    document["llm"] |= {"max_total_tokens": 32768, "swa_full_tokens_ratio": 0.03}
    with pytest.raises(SettingsError, match=r"llm\.max_total_tokens is 32768: an SWA pool of 983"):
        check_model(parse_settings(document, "x.yaml"), config)


def test_pools_are_sized_one_way_only() -> None:
    message = "max_total_tokens is given with kv_bytes, from which it follows"
    assert message in error(changed("llm.max_total_tokens", 4096))


def test_context_length_is_bounded_by_the_checkpoint() -> None:
    settings = parse_settings(changed("llm.context_length", 20000), "x.yaml")
    with pytest.raises(SettingsError, match=r"llm\.context_length is 20000.* to 16384"):
        check_model(settings, {"max_position_embeddings": 16384})


def test_missing_checkpoint_is_a_sentence() -> None:
    settings = parse_settings(changed("model.path", "models/none"), "x.yaml")
    with pytest.raises(SettingsError, match="it must be a directory that holds a checkpoint"):
        read_model_config(settings)


def test_config_path_prefers_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMNISERVE_CONFIG", raising=False)
    assert config_path().name == "pocket.yaml"
    assert config_path("configs/other.yaml").name == "other.yaml"
    monkeypatch.setenv("OMNISERVE_CONFIG", "configs/mimo-v2.5-gpu.yaml")
    assert config_path().name == "mimo-v2.5-gpu.yaml"
    assert config_path("configs/pocket.yaml").name == "mimo-v2.5-gpu.yaml"


def test_relative_paths_fall_back_to_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_path("configs/pocket.yaml") == ROOT / "configs/pocket.yaml"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/pocket.yaml").write_text("")
    assert resolve_path("configs/pocket.yaml") == Path("configs/pocket.yaml")


def every_section(model: type[BaseModel]) -> list[type[BaseModel]]:
    found = [model]
    for field in model.model_fields.values():
        kind = field.annotation
        options = getattr(kind, "__args__", (kind,))
        for option in options:
            if isinstance(option, type) and issubclass(option, BaseModel):
                found += every_section(option)
    return found


def test_every_setting_is_documented() -> None:
    for section in every_section(Settings):
        assert section.__doc__
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name} has no description"


def test_deployment_options_scale_one_way_or_the_other() -> None:
    fixed = parse_settings(POCKET, "x").images.deployment_options()
    assert fixed["num_replicas"] == 1
    assert "autoscaling_config" not in fixed
    scaling = {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 2}
    free = parse_settings(changed("images.autoscaling", scaling), "x").images.deployment_options()
    assert "num_replicas" not in free
    assert free["autoscaling_config"]["max_replicas"] == 4


def test_encoders_scale_by_pending_work() -> None:
    scaling = {"min_replicas": 1, "max_replicas": 4, "target_pending_work": 4096.0}
    options = parse_settings(changed("audio.autoscaling", scaling), "x").audio.deployment_options()
    config = AutoscalingConfig(**options["autoscaling_config"])
    assert config.policy.policy_function == "encoders.autoscaling:WorkPolicy"
    assert config.policy.policy_kwargs == {"target_work": 4096.0}
    for targets in ({}, {"target_pending_work": 1.0, "target_ongoing_requests": 1.0}):
        neither_or_both = {"min_replicas": 1, "max_replicas": 4, **targets}
        with pytest.raises(SettingsError, match=r"images\.autoscaling: give either"):
            parse_settings(changed("images.autoscaling", neither_or_both), "x")
