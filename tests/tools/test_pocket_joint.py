"""Joint training with media, MTP training, export: what is trained is what is served."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from encoders.audio import load_audio_model
from encoders.video_layout import plan_pairs
from encoders.vision.load import load_vision_model
from encoders.vision.preprocess import to_patches
from tests.tools.geometries import tiny
from tools.pocket.data.canvas import resized
from tools.pocket.data.mixture import LONG, long_sample, sample
from tools.pocket.data.sample import Sample, Sound, assistant, user
from tools.pocket.export import export, planned, state_tensors
from tools.pocket.init import write_text_files
from tools.pocket.layout import TensorPlan
from tools.pocket.oracle import load_oracle
from tools.pocket.spec import PocketSpec
from tools.pocket.train.audio_model import AudioTrainer
from tools.pocket.train.batches import collate
from tools.pocket.train.example import ChatEncoder, Example
from tools.pocket.train.joint import JointTraining, labelled, round_tokenizer
from tools.pocket.train.media import places
from tools.pocket.train.mtp import MtpTraining, walk
from tools.pocket.train.run import Job
from tools.pocket.train.turns import telling_last
from tools.pocket.train.vision_model import WIDTH, VisionTrainer, split


def small() -> PocketSpec:
    """``tiny`` with the pocket model's vocabulary and window, and codebooks of one size."""
    spec = tiny()
    return replace(
        spec,
        text=replace(spec.text, vocab_size=768, sliding_window=32),
        audio_tokenizer=replace(spec.audio_tokenizer, codebook_size=(8, 8, 8)),
    )


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> ChatEncoder:
    out = tmp_path_factory.mktemp("text")
    write_text_files(small(), out)
    return ChatEncoder(out)


@pytest.fixture(scope="module")
def training(encoder: ChatEncoder) -> MtpTraining:
    """A model of bfloat16 values with sinks, biases and codebooks away from zero."""
    torch.manual_seed(0)
    made = MtpTraining(encoder, small(), VisionTrainer(small()), AudioTrainer(small()))
    with torch.no_grad():
        for module in (made.trunk, made.vision, made.audio):
            for parameter in module.parameters():
                if parameter.dim() == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
                parameter.copy_(parameter.bfloat16().float())
        for codebook in made.audio_trainer.tokenizer.quantizer.codebooks:
            torch.nn.init.normal_(codebook.embed)
    round_tokenizer(made.audio_trainer)
    made.train(False)
    return made


@pytest.fixture(scope="module")
def checkpoint(training: MtpTraining, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported")
    export(training.state(), small(), out)
    return out


def tone(seconds: float) -> Sound:
    wave = np.sin(np.arange(int(24_000 * seconds)) / 20).astype(np.float32)
    return Sound(wave * np.linspace(0.1, 1, len(wave), dtype=np.float32), 24_000)


@pytest.fixture(scope="module")
def shown(training: MtpTraining) -> Sample:
    """A picture, a clip with sound that outlasts it, and a sound in one prompt."""
    look = sample("look", "train", 0, 0)
    clips = (sample("watch", "train", 0, i) for i in range(20))
    clip = next(s.media[0] for s in clips if s.media[0].sound is None)
    sounding = replace(clip, sound=tone(clip.duration + 3))
    question = user("A", 0, "B", 1, "C", 2)
    return Sample("mixed", [question], assistant("x"), (look.media[0], sounding, tone(1.0)))


def example_of(training: MtpTraining, shown: Sample) -> Example:
    media = [training.reader.prepare(medium) for medium in shown.media]
    example = training.mix.encoder.example(shown, [m.layout for m in media])
    example.media = media
    return example


@torch.no_grad()
def test_rows_in_training_are_the_rows_that_the_encoders_serve(
    training: MtpTraining, checkpoint: Path, shown: Sample
) -> None:
    batch = collate([example_of(training, shown)], 32)
    x = training.embed(batch)
    vision, audio = load_vision_model(checkpoint), load_audio_model(checkpoint)
    picture, clip, sound = shown.media
    times = clip.times()
    items = []
    for frames in (picture.pixels[None], clip.frames(times)):
        pixels, size = torch.from_numpy(np.array(frames)), resized(*frames.shape[1:3])
        items.append(to_patches(pixels, size, patch=16, temporal=2, merge=2))
    expected = torch.cat(vision.tower(items))
    torch.testing.assert_close(x[places(batch.examples, "vision")], expected, atol=1e-4, rtol=1e-3)
    track, alone = audio.encode(
        [audio.preprocess(s.samples[None], s.rate) for s in (clip.sound, sound)]
    )
    pairs = plan_pairs(list(times), len(track))
    assert pairs[-1].audio_stop < len(track)
    expected = torch.cat([track[: pairs[-1].audio_stop], alone])
    torch.testing.assert_close(x[places(batch.examples, "audio")], expected, atol=1e-4, rtol=1e-3)


@torch.no_grad()
def test_exported_weights_give_the_trained_logits(
    training: MtpTraining, checkpoint: Path, shown: Sample
) -> None:
    batch = collate([example_of(training, shown)], 32)
    ours = training.trunk.head(training.forward(batch).hidden)
    theirs = load_oracle(checkpoint)(inputs_embeds=training.embed(batch)).logits
    valid = batch.valid
    torch.testing.assert_close(ours[valid], theirs[valid], atol=5e-3, rtol=5e-3)
    assert ours.std() > 0.05


def test_the_checkpoint_is_complete_and_small_types(checkpoint: Path) -> None:
    main = load_file(checkpoint / "model.safetensors")
    assert main["visual.patch_embed.proj.weight"].dtype == torch.bfloat16
    assert main["model.layers.1.mlp.gate.weight"].dtype == torch.float32
    assert not main["speech_embeddings.0.weight"][tiny().audio_encoder.zero_row].any()
    assert any(
        name.startswith("model.mtp.") for name in load_file(checkpoint / "model_mtp.safetensors")
    )


def test_training_goes_on_from_an_exported_checkpoint(
    training: MtpTraining, encoder: ChatEncoder, checkpoint: Path, tmp_path: Path
) -> None:
    again = JointTraining(encoder, small(), VisionTrainer(small()), AudioTrainer(small()))
    again.begin_at(checkpoint)
    export(again.state(), small(), tmp_path)
    for name in ("model", "model_mtp", "audio_tokenizer/model"):
        first, second = (load_file(d / f"{name}.safetensors") for d in (checkpoint, tmp_path))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first), name
    assert again.mixer.pool > 0
    assert not again.mix.learning_lookup
    assert len(next(again.batches).examples) > 0


def test_a_text_state_takes_its_towers_from_a_base(training: MtpTraining, checkpoint: Path) -> None:
    state = {"trunk": training.trunk.state_dict()}
    with pytest.raises(ValueError, match="no base checkpoint"):
        state_tensors(state, small())
    main, _, _ = state_tensors(state, small(), checkpoint)
    stored = load_file(checkpoint / "model.safetensors")
    assert all(torch.equal(main[name], tensor) for name, tensor in stored.items())


def test_a_state_of_another_tokenizer_is_not_exported(
    training: MtpTraining, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="another tokenizer"):
        export({**training.state(), "tokenizer": "?"}, small(), tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_bad_tensors_are_named() -> None:
    plan = [TensorPlan("a", (2,), 1.0)]
    assert planned({"a": torch.zeros(2)}, plan)["a"].dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"a: expected shape \[2\], got \[3\]"):
        planned({"a": torch.zeros(3)}, plan)
    with pytest.raises(ValueError, match="not finite"):
        planned({"a": torch.tensor([0.0, torch.nan])}, plan)
    with pytest.raises(ValueError, match=r"without a place.*'b'"):
        planned({"a": torch.zeros(2), "b": torch.zeros(1)}, plan)


def test_a_joint_step_reaches_every_part(encoder: ChatEncoder, shown: Sample) -> None:
    joint = JointTraining(encoder, small(), VisionTrainer(small()), AudioTrainer(small()))
    for codebook in joint.audio_trainer.tokenizer.quantizer.codebooks:
        torch.nn.init.normal_(codebook.embed)
    example = example_of(joint, shown)
    joint.batches = iter([collate([example], 32)] * 2)
    optim = joint.optimizer(1e-3)
    before = {name: p.clone() for name, p in joint.trunk.named_parameters()}
    tower = joint.vision.tower.patch_embed.proj.weight.clone()
    table = joint.audio.embeddings[0].weight.clone()
    codes = [c.embed.clone() for c in joint.audio_trainer.tokenizer.quantizer.codebooks]
    joint.mix.level = replace(joint.mix.level, form="separated")
    figures = joint.step(0, optim)
    assert figures["labels"] > 0
    moved = {n for n, p in joint.trunk.named_parameters() if not torch.equal(p, before[n])}
    assert {"embed.weight", "layers.1.attention.sinks", "layers.2.mlp.gate"} <= moved
    assert not any(name.startswith("mtp.") for name in moved)
    assert not torch.equal(tower, joint.vision.tower.patch_embed.proj.weight)
    assert not torch.equal(table, joint.audio.embeddings[0].weight)
    kept = [c.embed for c in joint.audio_trainer.tokenizer.quantizer.codebooks]
    assert all(torch.equal(a, b) for a, b in zip(codes, kept, strict=True))


def test_a_batch_of_clips_has_labels_without_characters(training: MtpTraining) -> None:
    watched = sample("watch", "train", 0, 1)
    (item, *_) = training.reader.prepare(replace(watched.media[0], sound=None)).items
    assert (item.labels.characters == -1).all()
    prediction = torch.zeros(item.patches.shape[0], WIDTH)
    assert 1 < labelled(split(prediction), item.labels) < 20


def test_a_step_with_a_broken_gradient_is_left_out(encoder: ChatEncoder) -> None:
    joint = JointTraining(encoder, small(), VisionTrainer(small()), AudioTrainer(small()))
    joint.batches = iter([collate([encoder.example(sample("chat", "train", 0, 0))], 32)] * 2)
    optim = joint.optimizer(1e-3)
    before = joint.trunk.head.weight.clone()
    with torch.no_grad():
        joint.previous.heads.weight[0, 0] = torch.inf
    joint.step(0, optim)
    assert torch.equal(joint.trunk.head.weight, before)


def test_frozen_mtp_training_moves_the_draft_layers_only(training: MtpTraining) -> None:
    joint = MtpTraining(
        training.mix.encoder, small(), VisionTrainer(small()), AudioTrainer(small())
    )
    example = training.mix.encoder.example(sample("json", "train", 0, 0))
    joint.batches = iter([collate([example], 32)] * 10)
    optim = joint.optimizer(1e-2)
    before = {name: p.clone() for name, p in joint.trunk.state_dict().items()}
    figures = [joint.step(i, optim) for i in range(4)]
    assert figures[-1]["draft1"] < figures[0]["draft1"]
    for name, value in joint.trunk.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith("mtp."), name


def test_answers_too_short_for_a_draft_cost_nothing(training: MtpTraining) -> None:
    asked = Sample("chat", [user("hello")], assistant("one"))
    batch = collate([training.mix.encoder.example(asked)], 32)
    losses, _ = training.losses(batch, training.forward(batch), torch.Generator())
    drafts = [float(losses[f"draft{k}"]) for k in range(len(training.trunk.mtp))]
    assert len(drafts) > 1
    assert drafts[0] > 0
    assert not any(drafts[1:])


def test_the_tower_learns_at_a_lower_rate(encoder: ChatEncoder, tmp_path: Path) -> None:
    joint = JointTraining(encoder, small(), VisionTrainer(small()), AudioTrainer(small()))
    joint.batches = iter([collate([encoder.example(sample("chat", "train", 0, 0))], 32)] * 2)
    optim = joint.optimizer(1e-3)
    options = argparse.Namespace(state=tmp_path / "s.pt", rate=1e-3, hours=1e-6, decay=0.0)
    job = Job(
        lambda number: joint.step(number, optim),
        lambda: {},
        dict,
        lambda state: None,
        optim,
        options,
        warm_up=1,
    )
    job.run()
    rates = {id(p): group["lr"] for group in optim.param_groups for p in group["params"]}
    assert job.number == 1
    assert rates[id(joint.trunk.embed.weight)] == 1e-3
    assert rates[id(joint.vision.tower.patch_embed.proj.weight)] == 0.7e-3


def test_draft_ids_are_what_the_server_clamps_to(training: MtpTraining) -> None:
    pad = training.mix.encoder.vocabulary.pads["image"]
    assert training.draft_ids(torch.tensor([[5, pad, 7]])).tolist() == [[5, 767, 7]]


def test_accept_lengths_of_a_walk() -> None:
    ids = [0, 0, 10, 11, 12, 13, 14, 15, 16]  # the answer is ids[2:9]
    perfect = [[*ids[2 + k :], *[-1] * (2 + k)] for k in range(3)]
    assert walk(ids, perfect, 2, 9) == [4, 2]
    useless = [[-1] * 9] * 3
    assert walk(ids, useless, 2, 9) == [1] * 6
    only_first = [perfect[0], *useless[:2]]
    assert walk(ids, only_first, 2, 9) == [2, 2, 2]


@pytest.mark.parametrize("skill", list(LONG))
def test_training_asks_more_and_lets_the_longest_answer_come_last(skill: str) -> None:
    for index in range(8):
        made = long_sample(skill, 3, index, 6)
        told = telling_last(made)
        answers = [m["content"] for m in told.conversation if m["role"] == "assistant"]
        assert answers == sorted(answers, key=len)
        assert sorted(answers) == sorted(
            m["content"] for m in made.conversation if m["role"] == "assistant"
        )
        asked = [m["content"] for m in told.messages if m["role"] == "user"]
        (parts,) = (content for content in asked if not isinstance(content, str))
        assert [part["type"] for part in parts] == ["media"] * len(made.media) + ["text"]
