"""Reading tensors by name from safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from encoders.checkpoint import Checkpoint, CheckpointError, load_module, read_config


def write_sharded(folder: Path) -> None:
    save_file({"a.weight": torch.ones(2, 3)}, folder / "one.safetensors")
    save_file({"a.bias": torch.arange(2.0)}, folder / "two.safetensors")
    weight_map = {"a.weight": "one.safetensors", "a.bias": "two.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


def test_index_finds_tensors_across_files(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    save_file({"stray": torch.zeros(1)}, tmp_path / "other.safetensors")
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.names() == ["a.bias", "a.weight"]
    assert checkpoint.names("a.w") == ["a.weight"]
    assert "stray" not in checkpoint
    assert checkpoint.tensor("a.bias").tolist() == [0.0, 1.0]


def test_directory_without_index(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(4)}, tmp_path / "model.safetensors")
    assert Checkpoint(tmp_path).tensor("x").shape == (4,)


def test_load_module_casts_and_fills_a_meta_module(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    with torch.device("meta"):
        linear = nn.Linear(3, 2)
    load_module(linear, Checkpoint(tmp_path), prefix="a.", dtype=torch.bfloat16)
    assert linear.weight.dtype == torch.bfloat16
    assert linear.bias.tolist() == [0.0, 1.0]
    assert not linear.weight.requires_grad
    assert not linear.training


def test_load_module_accepts_an_alias(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    linear = nn.Linear(3, 2)
    load_module(
        linear,
        Checkpoint(tmp_path),
        prefix="new.",
        aliases=lambda name: [name.replace("new.", "a.")],
    )
    assert linear.weight.sum() == 6


def test_faults_name_tensor_and_both_shapes(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(5, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load_module(nn.Linear(3, 2), Checkpoint(tmp_path), prefix="a.")
    message = str(caught.value)
    assert "tensor a.weight has shape [5, 3], expected [2, 3]" in message
    assert "tensor a.bias is missing, expected shape [2]" in message


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        Checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        Checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone.st"}}')
    with pytest.raises(CheckpointError, match=r"gone\.st"):
        Checkpoint(tmp_path).tensor("x")
    with pytest.raises(CheckpointError, match="tensor y is missing"):
        Checkpoint(tmp_path).tensor("y")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        Checkpoint(tmp_path)


def test_config_faults_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(path)
    path.write_text("[1]")
    with pytest.raises(CheckpointError, match="list, not an object"):
        read_config(path)
    path.write_text('{"a": 1}')
    assert read_config(path) == {"a": 1}
