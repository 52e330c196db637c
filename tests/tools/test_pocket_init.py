"""The files a checkpoint consists of, and how they load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from tests.tools.geometries import tiny
from tools.pocket.init import write_checkpoint, write_text_files
from tools.pocket.layout import TensorPlan, audio_tokenizer_plan, main_plan, mtp_plan
from tools.pocket.spec import PocketSpec
from tools.pocket.special_tokens import special_ids
from tools.pocket.weights import random_tensor

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny")
    write_checkpoint(tiny(), 1, out)
    return out


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_same_seed_same_bytes_other_seed_other_weights(checkpoint: Path, tmp_path: Path) -> None:
    write_checkpoint(tiny(), 1, tmp_path / "same")
    assert contents(tmp_path / "same") == contents(checkpoint)
    write_checkpoint(tiny(), 2, tmp_path / "other")
    differing = {
        name
        for name, data in contents(tmp_path / "other").items()
        if data != contents(checkpoint)[name]
    }
    assert differing == {
        "model.safetensors",
        "model_mtp.safetensors",
        "audio_tokenizer/model.safetensors",
    }


def test_files_hold_the_planned_tensors(checkpoint: Path) -> None:
    spec = tiny()
    plans = {
        "model.safetensors": list(main_plan(spec)),
        "model_mtp.safetensors": list(mtp_plan(spec)),
        "audio_tokenizer/model.safetensors": list(audio_tokenizer_plan(spec.audio_tokenizer)),
    }
    for file, plan in plans.items():
        stored = {
            name: (tuple(t.shape), str(t.dtype).removeprefix("torch."))
            for name, t in load_file(checkpoint / file).items()
        }
        assert stored == {p.name: (p.shape, p.dtype) for p in plan}


def test_index_covers_both_language_files(checkpoint: Path) -> None:
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    stored = {
        name: (file, tensor.nbytes)
        for file in ("model.safetensors", "model_mtp.safetensors")
        for name, tensor in load_file(checkpoint / file).items()
    }
    assert index["weight_map"] == {name: file for name, (file, _) in stored.items()}
    assert index["metadata"]["total_size"] == sum(size for _, size in stored.values())


def test_random_values_follow_the_plan_and_depend_on_name_and_seed_only() -> None:
    plan = TensorPlan("a.weight", (200, 50), std=0.5, mean=2.0, dtype="float32", zero_row=7)
    values = random_tensor(plan, 3)
    assert not values[7].any()
    kept = torch.cat([values[:7], values[8:]])
    assert abs(kept.mean() - 2.0) < 0.02
    assert abs(kept.std() - 0.5) < 0.02
    assert torch.equal(values, random_tensor(plan, 3))
    assert not torch.equal(values, random_tensor(plan, 4))
    renamed = TensorPlan("b.weight", (200, 50), std=0.5, mean=2.0, dtype="float32", zero_row=7)
    assert not torch.equal(values, random_tensor(renamed, 3))


def test_nothing_is_at_its_neutral_value(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("attention_sink_bias", "sinks", "e_score_correction_bias", ".bias")):
            assert tensor.float().abs().min() > 0, name
        if "norm" in name:
            assert 0.02 < tensor.float().std() < 0.3, name
            assert abs(tensor.float().mean() - 1) < 0.2, name
    zero_row = tiny().audio_encoder.zero_row
    assert not tensors["speech_embeddings.0.weight"][zero_row].any()


def test_auto_config_keeps_every_field(checkpoint: Path) -> None:
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=True)
    written = json.loads((checkpoint / "config.json").read_text())
    assert type(config).__name__ == "MiMoV2Config"
    assert isinstance(config.vision_config, dict)  # SGLang reads the sub-configs as dictionaries
    for key, value in written.items():
        if key not in ("dtype", "auto_map"):
            assert getattr(config, key) == value, key
    assert config.dtype == torch.bfloat16
    # A flat rms_norm_eps would replace the vision tower's 1e-6 in SGLang.
    assert not hasattr(config, "rms_norm_eps")


def test_token_ids_agree_in_all_files(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    processor = config["processor_config"]
    ids = special_ids(config["vocab_size"])
    expected = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "audio_token_id": "<|audio_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
        "audio_start_token_id": "<|mimo_audio_start|>",
        "audio_end_token_id": "<|mimo_audio_end|>",
    }
    for key, token in expected.items():
        assert config[key] == processor[key] == ids[token]
    assert processor["video_start_token_id"] == ids["<|mimo_video_start|>"]
    assert processor["video_end_token_id"] == ids["<|mimo_video_end|>"]
    assert (config["eos_token_id"], config["pad_token_id"]) == (
        ids["<|im_end|>"],
        ids["<|endoftext|>"],
    )
    generation = json.loads((checkpoint / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [ids["<|im_end|>"], ids["<|endoftext|>"]]


def test_audio_settings_agree_in_all_files(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    audio = json.loads((checkpoint / "audio_tokenizer" / "config.json").read_text())
    processor = config["processor_config"]
    assert config["audio_config"]["audio_channels"] == audio["num_quantizers"] == 3
    assert config["audio_config"]["speech_vocab_size"] == "9"
    assert config["audio_config"]["speech_zeroemb_idx"] == "8"
    pairs = {
        "audio_sampling_rate": "sampling_rate",
        "audio_hop_length": "hop_length",
        "audio_nfft": "nfft",
        "audio_n_mels": "n_mels",
        "audio_stride_size": "stride_size",
        "audio_avg_pooler": "avg_pooler",
    }
    for ours, theirs in pairs.items():
        assert processor[ours] == audio[theirs]


def test_committed_text_files_are_current(tmp_path: Path) -> None:
    write_text_files(PocketSpec(), tmp_path)
    for name, data in contents(tmp_path).items():
        assert (REPOSITORY / "models" / "pocket" / name).read_bytes() == data, name


def test_pocket_fits_its_size_limit() -> None:
    spec = PocketSpec()
    plans = [*main_plan(spec), *mtp_plan(spec), *audio_tokenizer_plan(spec.audio_tokenizer)]
    width = {"bfloat16": 2, "float32": 4}
    size = sum(torch.Size(p.shape).numel() * width[p.dtype] for p in plans)
    assert 25e6 < size < 32e6
