"""Fused projections and the transformers oracle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.geometries import tiny
from tools.pocket.configs import model_config
from tools.pocket.fused_qkv import QkvRows, fuse, unfuse
from tools.pocket.init import write_checkpoint
from tools.pocket.oracle import load_oracle, oracle_config, oracle_state
from tools.pocket.spec import TextSpec


@given(
    shards=st.integers(1, 8),
    q=st.integers(1, 6),
    k=st.integers(1, 3),
    v=st.integers(1, 3),
)
def test_unfuse_inverts_fuse(shards: int, q: int, k: int, v: int) -> None:
    rows = QkvRows(q * shards, k * shards, v * shards, shards)
    generator = torch.Generator().manual_seed(q)
    parts = [torch.randn(n, 5, generator=generator) for n in (rows.q, rows.k, rows.v)]
    fused = fuse(parts[0], parts[1], parts[2], rows)
    assert fused.shape == (rows.total, 5)
    assert all(torch.equal(a, b) for a, b in zip(unfuse(fused, rows), parts, strict=True))


def test_fused_rows_of_the_published_example() -> None:
    # V2.5 full attention, shard 2 (mimo-v2.md section 12): where its heads lie.
    rows = QkvRows(q=64 * 192, k=4 * 192, v=4 * 128, shards=4)
    marks = [
        torch.arange(n).unsqueeze(1) + base
        for n, base in zip((rows.q, rows.k, rows.v), (0, 100_000, 200_000), strict=True)
    ]
    fused = fuse(marks[0], marks[1], marks[2], rows).squeeze(1)
    assert fused[6784:9856].tolist() == list(range(32 * 192, 48 * 192))
    assert fused[9856:10048].tolist() == list(range(100_000 + 2 * 192, 100_000 + 3 * 192))
    assert fused[10048:10176].tolist() == list(range(200_000 + 2 * 128, 200_000 + 3 * 128))


def test_bad_row_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="does not divide into 2 shards"):
        QkvRows(q=3, k=2, v=2, shards=2)
    with pytest.raises(ValueError, match="has 7 rows, expected 8"):
        unfuse(torch.zeros(7, 1), QkvRows(q=4, k=2, v=2, shards=2))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny")
    write_checkpoint(tiny(), 1, out)
    return out


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> torch.nn.Module:
    return load_oracle(checkpoint)


def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids.unsqueeze(0)).logits[0]


def prompt(length: int) -> torch.Tensor:
    return torch.randint(0, 300, (length,), generator=torch.Generator().manual_seed(0))


def test_logits_are_finite_and_depend_on_order_and_far_context(oracle: torch.nn.Module) -> None:
    ids = prompt(60)
    base = logits(oracle, ids)
    assert torch.isfinite(base).all()
    assert 1.0 < base.std() < 6.0
    far = ids.clone()
    far[0] += 1
    assert (logits(oracle, far)[-1] - base[-1]).abs().max() > 0.1
    swapped = ids.clone()
    swapped[[10, 11]] = swapped[[11, 10]]
    assert (logits(oracle, swapped)[-1] - base[-1]).abs().max() > 0.1
    # Causal: a later token never changes an earlier row.
    late = ids.clone()
    late[-1] += 1
    assert torch.allclose(logits(oracle, late)[:-1], base[:-1], atol=1e-4)


def test_window_is_the_window_plus_the_token_itself(tmp_path: Path) -> None:
    # One window layer only: exactly sliding_window keys to the left are seen (4 here).
    text = replace(tiny().text, hybrid_layer_pattern=(1,), moe_layer_freq=(0,))
    write_checkpoint(replace(tiny(), text=text), 1, tmp_path)
    model = load_oracle(tmp_path)
    ids = prompt(20)
    base = logits(model, ids)
    changed = ids.clone()
    changed[10] += 1
    moved = (logits(model, changed) - base).abs().amax(dim=-1) > 1e-4
    assert moved.nonzero().flatten().tolist() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("name", ["attention_sink_bias", "e_score_correction_bias", "qkv_proj"])
def test_every_trap_changes_the_logits(
    checkpoint: Path, oracle: torch.nn.Module, name: str
) -> None:
    """Sinks, router correction and shard order matter, so a parity test can fail on each."""
    from safetensors.torch import load_file

    tensors = load_file(checkpoint / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    for key, tensor in tensors.items():
        if not key.startswith("model.") or name not in key:
            continue
        if name == "qkv_proj":  # read as plain [Q | K | V]
            layer = config["hybrid_layer_pattern"][int(key.split(".")[2])]
            groups = config["swa_num_key_value_heads" if layer else "num_key_value_heads"]
            sizes = [4 * 12, groups * 12, groups * 8]
            rows = QkvRows(*sizes, shards=2)
            q, k, v = tensor.split(sizes)
            tensors[key] = fuse(q, k, v, rows)
        elif name == "attention_sink_bias":
            tensors[key] = tensor - 1000
        else:
            tensors[key] = torch.zeros_like(tensor)
    broken = load_oracle(checkpoint)
    broken.load_state_dict(oracle_state(tensors, config))
    ids = prompt(60)
    change = (logits(broken, ids) - logits(oracle, ids)).abs().amax(dim=-1)
    assert change[5:].median() > 0.1


def test_split_layout_is_the_same_model(checkpoint: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    state = oracle_state(tensors, config)
    for key in [k for k in tensors if "qkv_proj" in k]:
        del tensors[key]
        for part in "qkv":
            name = key.replace("qkv_proj", f"{part}_proj")
            tensors[name] = state[name].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    config["attention_projection_layout"] = "split"
    (tmp_path / "config.json").write_text(json.dumps(config))
    split, fused = load_oracle(tmp_path), load_oracle(checkpoint)
    assert torch.equal(logits(split, prompt(9)), logits(fused, prompt(9)))


def test_geometry_that_transformers_cannot_express_is_refused() -> None:
    config = model_config(replace(tiny(), text=TextSpec(swa_num_key_value_heads=8)))
    with pytest.raises(ValueError, match="twice as many KV heads"):
        oracle_config(config)
    config = model_config(tiny())
    config["swa_head_dim"] = 16
    with pytest.raises(ValueError, match="one head_dim"):
        oracle_config(config)
