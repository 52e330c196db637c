"""The vision tower against a plain, unbatched, explicit-mask reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from vision_reference import TINY, ReferenceTower, random_tensors, reference_patches

from encoders.checkpoint import CheckpointError
from encoders.vision.config import VisionConfig
from encoders.vision.load import load_vision_model
from encoders.vision.packing import Grid
from encoders.vision.preprocess import STD, byte_patches, patchify, to_patches
from encoders.vision.tower import VisionTower

# Windows of 5 and 3 patches: smaller than one row of tokens, never a divisor of a segment.
GRIDS: list[Grid] = [(1, 2, 2), (1, 4, 10), (3, 6, 4), (1, 12, 14), (2, 2, 30), (1, 6, 4)]


def make_tower(config: dict[str, Any], form: Any = "softmax_column") -> VisionTower:
    tower = VisionTower(VisionConfig.from_dict(config), form)
    tower.load_state_dict(random_tensors(config))
    return tower.eval().requires_grad_(False)


def items(grids: list[Grid], seed: int = 0) -> list[tuple[torch.Tensor, Grid]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(t * h * w, 3 * 2 * TINY["patch_size"] ** 2, generator=generator), (t, h, w))
        for t, h, w in grids
    ]


@pytest.mark.parametrize("form", ["softmax_column", "first_key_bias"])
@pytest.mark.parametrize("window", [3, 5, 40, 1000])
def test_batch_equals_reference(form: str, window: int) -> None:
    config = {**TINY, "visual_token_window_size": window}
    tower, reference = (
        make_tower(config, form),
        ReferenceTower(config, random_tensors(config), form),
    )
    batch = items(GRIDS)
    for rows, (patches, grid) in zip(tower(batch), batch, strict=True):
        torch.testing.assert_close(rows, reference(patches, grid), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("types", [[-1] * 5, [0] * 5, [1] * 5, [1, 0, 1, 1, 0]])
def test_every_mix_of_blocks(types: list[int]) -> None:
    full = [index for index, kind in enumerate(types) if kind == -1]
    config = {**TINY, "vit_window_attn_types": types, "fullatt_block_indexes": full}
    tower = make_tower(config)
    reference = ReferenceTower(config, random_tensors(config), "softmax_column")
    batch = items([(1, 8, 6), (2, 4, 12)])
    for rows, (patches, grid) in zip(tower(batch), batch, strict=True):
        torch.testing.assert_close(rows, reference(patches, grid), atol=2e-4, rtol=2e-4)


def test_sinks_and_their_forms_matter() -> None:
    # case 82: a form that is quietly dropped must not pass for the other.
    batch = items([(1, 8, 8)])
    tensors = random_tensors(TINY)
    silent = VisionTower(VisionConfig.from_dict(TINY))
    silent.load_state_dict(
        {name: t.zero_() if name.endswith("sinks") else t for name, t in tensors.items()}
    )
    outputs = [
        make_tower(TINY, "softmax_column")(batch)[0],
        make_tower(TINY, "first_key_bias")(batch)[0],
        silent.requires_grad_(False)(batch)[0],
    ]
    for left, right in ((0, 1), (0, 2), (1, 2)):
        assert (outputs[left] - outputs[right]).abs().max() > 1e-2


def test_batched_equals_single() -> None:
    tower = make_tower(TINY)
    batch = items(GRIDS)
    together = tower(batch)
    for item, rows in zip(batch, together, strict=True):
        torch.testing.assert_close(tower([item])[0], rows, atol=1e-5, rtol=1e-4)
    backwards = tower(batch[::-1])[::-1]
    for rows, again in zip(together, backwards, strict=True):
        torch.testing.assert_close(rows, again, atol=1e-5, rtol=1e-4)


def test_stills_equal_a_repeated_frame_and_mix_with_clips() -> None:
    tower = make_tower(TINY)
    frame = torch.randint(0, 256, (1, 16, 24, 3), dtype=torch.uint8)
    sizes: dict[str, Any] = {"patch": 4, "temporal": 2, "merge": 2}
    still = to_patches(frame, (16, 24), **sizes)
    pair = to_patches(frame.repeat(2, 1, 1, 1), (16, 24), **sizes)
    assert still[1] == pair[1] == (1, 4, 6)
    assert still[0].shape[1] * 2 == pair[0].shape[1]
    rows = tower([still, pair, still])
    torch.testing.assert_close(rows[0], rows[1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(rows[2], rows[1], atol=1e-5, rtol=1e-4)


def test_new_weights_reach_stills() -> None:
    frame = torch.randint(0, 256, (1, 16, 16, 3), dtype=torch.uint8)
    batch = [to_patches(frame, (16, 16), patch=4, temporal=2, merge=2)]
    tower = make_tower(TINY)
    before = tower(batch)[0]
    tower.load_state_dict(random_tensors(TINY, seed=1))
    other = VisionTower(VisionConfig.from_dict(TINY)).requires_grad_(False)
    other.load_state_dict(random_tensors(TINY, seed=1))
    assert not torch.allclose(before, tower(batch)[0])
    torch.testing.assert_close(tower(batch)[0], other(batch)[0])


def test_gradients_are_finite() -> None:
    tower = make_tower(TINY, "first_key_bias").requires_grad_(True)
    sum(rows.sum() for rows in tower(items([(1, 4, 6), (1, 2, 2)]))).backward()
    for name, parameter in tower.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("frames", [1, 2, 4])
def test_patchify_equals_numpy(frames: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (frames, 32, 96, 3), dtype=np.uint8)
    temporal = 1 if frames == 1 else 2
    patches, grid = to_patches(torch.from_numpy(pixels), (32, 96), patch=16, temporal=2, merge=2)
    assert grid == (max(frames // 2, 1), 2, 6)
    expected = reference_patches(pixels, 16, temporal, 2)
    torch.testing.assert_close(patches, expected, atol=1e-5, rtol=1e-5)
    order = torch.arange(2 * 3 * 32 * 32.0).view(2, 3, 32, 32)
    rows = patchify(order, patch=16, temporal=2, merge=2)
    assert rows[1, 0] == 16  # second patch: same token, next column
    assert rows[2, 0] == 16 * 32  # third patch: same token, next row
    assert rows[0, 256] == 3 * 32 * 32  # second temporal tap of channel 0
    assert rows[0, 512] == 32 * 32  # channel 1


def test_resize_equals_bilinear_by_hand() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (1, 21, 33, 3), dtype=np.uint8)
    size = (64, 32)
    patches, _ = to_patches(torch.from_numpy(pixels), size, patch=16, temporal=2, merge=2)
    resized = pixels[0].astype(np.float64)
    for axis, target in enumerate(size):
        source = resized.shape[axis]
        place = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, None)
        low = place.astype(int)
        high = np.minimum(low + 1, source - 1)
        weight = (place - low).reshape([-1 if axis == a else 1 for a in range(3)])
        a, b = resized.take(low, axis), resized.take(high, axis)
        resized = a * (1 - weight) + b * weight
    expected = reference_patches(resized[None], 16, 1, 2)
    # One level of 8 bits, in units of a normalised value.
    torch.testing.assert_close(patches, expected, atol=1.02 / 255 / min(STD), rtol=0)


def test_byte_patches_give_the_rows_of_normalised_ones() -> None:
    tower = make_tower(TINY)
    frames = torch.randint(0, 256, (4, 40, 56, 3), dtype=torch.uint8)
    sizes: dict[str, Any] = {"patch": 4, "temporal": 2, "merge": 2}
    for count in (1, 4):
        raw, grid = byte_patches(frames[:count], (40, 56), **sizes)
        assert raw.dtype == torch.uint8
        exact = to_patches(frames[:count], (40, 56), **sizes)
        torch.testing.assert_close(tower([(raw, grid)])[0], tower([exact])[0], atol=1e-5, rtol=1e-4)


def save_checkpoint(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    (directory / "config.json").write_text(json.dumps({"vision_config": TINY}))
    named = {f"visual.{name}": tensor.clone() for name, tensor in tensors.items()}
    save_file(named, directory / "model.safetensors")


def test_load_from_a_checkpoint(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    missing = "blocks.2.attn.sinks"
    save_checkpoint(tmp_path, {name: t for name, t in tensors.items() if name != missing})
    model = load_vision_model(tmp_path)
    assert model.tower.blocks[2].attn.sinks.eq(0).all()
    expected = VisionTower(VisionConfig.from_dict(TINY))
    expected.load_state_dict(tensors | {missing: torch.zeros(TINY["num_heads"])})
    batch = items([(1, 4, 4)])
    with torch.inference_mode():
        torch.testing.assert_close(model.tower(batch)[0], expected(batch)[0])
    half = load_vision_model(tmp_path, dtype=torch.bfloat16)
    rows = half.tower(batch)[0]
    assert rows.dtype == torch.bfloat16
    error = (rows.float() - expected(batch)[0]).abs().max() / rows.float().abs().max()
    assert error < 0.1


def test_a_broken_checkpoint_names_what_is_wrong(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    del tensors["blocks.3.norm2.weight"]
    tensors["merger.ln_q.weight"] = torch.ones(7)
    save_checkpoint(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"visual\.blocks\.3\.norm2\.weight is missing"):
        load_vision_model(tmp_path)
    with pytest.raises(CheckpointError, match=r"visual\.merger\.ln_q\.weight has shape \[7\]"):
        load_vision_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="vision_config lacks depth"):
        load_vision_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vit_window_attn_types": [-1, 0, 0, -1]}, "names 4 blocks"),
        ({"fullatt_block_indexes": [1]}, "disagree"),
        ({"num_key_value_heads": 4}, "no multiple of"),
        ({"qk_channels": 6}, "multiple of 4"),
        ({"visual_token_window_size": 0}, "at least 1"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_contradictory_configurations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VisionConfig.from_dict({**TINY, **change})
    with pytest.raises(ValueError, match="sink_form"):
        VisionTower(VisionConfig.from_dict(TINY), "none")  # type: ignore[arg-type]
