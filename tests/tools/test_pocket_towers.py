"""Training of the towers: losses fall, state files resume, tensors fit the checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from encoders.audio import load_audio_model
from encoders.vision.load import load_vision_model
from tests.tools.geometries import tiny
from tests.tools.pocket_voices import chord_voice
from tools.pocket.data import scenes, sounds
from tools.pocket.data.sample import stream
from tools.pocket.init import write_checkpoint
from tools.pocket.layout import audio_tokenizer_plan, main_plan
from tools.pocket.spec import PocketSpec
from tools.pocket.train import audio, run, towers, vision_data
from tools.pocket.train.audio import AudioJob, edits, padded, target
from tools.pocket.train.audio_model import VOCABULARY, AudioTrainer
from tools.pocket.train.muon import MuonAdamW, orthogonal
from tools.pocket.train.vision import VisionJob
from tools.pocket.train.vision_model import VisionTrainer
from tools.pocket.train.vq import QuantizerTrainer
from tools.pocket.trunk.model import Trunk


def options(state: Path, **changes: float) -> argparse.Namespace:
    return argparse.Namespace(
        **{"state": state, "rate": 1e-3, "hours": 1.0, "decay": 0.0, **changes}
    )


def test_a_few_steps_teach_the_tower_its_labels() -> None:
    job = VisionJob(tiny())
    # Two stills of one scene each and a pair, small ones.
    made = [scenes.random_scene(stream("train", "fit", 0, i), (96, 96)) for i in range(2)]
    pictures = [scenes.picture(scene, stream("train", "fit", 1, 0)) for scene in made]
    items = [vision_data.item_of(p.pixels[None], [p.facts]) for p in pictures]
    items.append(vision_data.pair(stream("train", "fit", 0, 2)))
    optimizer = run.optimizer([job.trainer], 1e-2)
    first = job.learn(items, optimizer)
    for _ in range(25):
        last = job.learn(items, optimizer)
    for name in ("colour", "shape", "size"):
        assert last[name] < 0.75 * first[name], name


def test_every_tower_parameter_learns() -> None:
    """The temporal half of the patch weight and the sinks too."""
    trainer = VisionTrainer(tiny())
    item = vision_data.pair(stream("train", "grad", 0, 0))
    torch.stack(list(trainer.losses([item]).values())).sum().backward()
    for name, parameter in trainer.tower.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    halves = trainer.tower.patch_embed.proj.weight.grad
    assert halves is not None
    assert not torch.equal(halves[:, :, 0], halves[:, :, 1])


def test_a_few_steps_teach_the_tokenizer_to_rebuild_sounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "BATCH", 4)
    job = AudioJob(uniform(), chord_voice)
    optimizer = run.optimizer([job.trainer], 1e-2)
    # The same four sounds again and again, first as they are, then through the codes.
    plain = [job.step(0, optimizer) for _ in range(12)]
    assert plain[-1]["mel"] < 0.8 * plain[0]["mel"]
    assert plain[-1]["ctc"] < 0.5 * plain[0]["ctc"]
    monkeypatch.setattr(audio, "CODES_FROM", 0)
    coded = [job.step(0, optimizer) for _ in range(12)]
    assert plain[-1]["commitment"] == 0
    assert coded[0]["commitment"] > 0
    assert coded[-1]["mel"] < plain[0]["mel"]
    assert job.trainer.codes.filled.item() == 1


def uniform() -> PocketSpec:
    """``tiny`` with codebooks of one size, as training needs them."""
    spec = tiny()
    sizes = {"codebook_size": (8, 8, 8)}
    tokenizer = type(spec.audio_tokenizer)(**{**vars(spec.audio_tokenizer), **sizes})
    return PocketSpec(spec.text, spec.vision, tokenizer, spec.audio_encoder)


def test_sounds_padded_to_one_length_keep_their_words() -> None:
    made = [sounds.speech(stream("train", "pad", 0, i), chord_voice) for i in range(8)]
    found = padded(made)
    assert sorted(len(sound.samples) for sound in found) == [len(sound.samples) for sound in found]
    assert len({len(sound.samples) for sound in found}) == 2
    assert sorted(map(sounds.transcript, found)) == sorted(map(sounds.transcript, made))
    assert [VOCABULARY[k - 1] for k in target(found[0])] == sounds.transcript(found[0]).split()


def test_edit_distance() -> None:
    assert edits([], ["a", "b"]) == 2
    assert edits(["a", "x", "c"], ["a", "b", "c"]) == 1
    assert edits(["a", "b", "b"], ["a", "b"]) == 1
    assert edits(["b"], ["a", "b", "c"]) == 2


def codes(latents: torch.Tensor, size: int = 16, stages: int = 3) -> QuantizerTrainer:
    from encoders.audio.quantizer import ResidualQuantizer

    trainer = QuantizerTrainer(ResidualQuantizer((size,) * stages, latents.shape[1]))
    trainer.fill(latents)
    return trainer


def test_codebooks_move_to_the_data() -> None:
    torch.manual_seed(0)
    latents = torch.randn(256, 8) @ torch.randn(8, 8)
    trainer = codes(latents)
    before = trainer(latents)[1].item()
    for _ in range(60):
        trainer(latents)
    assert trainer(latents)[1].item() < 0.8 * before
    assert trainer.usage > 0.9


def test_dead_codes_come_back() -> None:
    torch.manual_seed(0)
    latents = torch.randn(256, 8)
    trainer = codes(latents)
    with torch.no_grad():
        trainer.codebooks[0].embed[3:] = 1000.0
        trainer.averages[0, 3:] = 1000.0
    for _ in range(300):
        trainer(latents)
    assert trainer.codebooks[0].embed.abs().max() < 10
    assert trainer.usage > 0.8


def test_gradients_pass_the_codes_unchanged() -> None:
    latents = torch.randn(64, 8, requires_grad=True)
    trainer = codes(latents.detach()).eval()
    quantised, commitment = trainer(latents)
    assert not torch.allclose(quantised, latents)
    quantised.sum().backward()
    assert latents.grad is not None
    assert torch.equal(latents.grad, torch.ones_like(latents))
    assert commitment > 0


def test_evaluation_mode_leaves_the_codebooks_alone() -> None:
    latents = torch.randn(64, 8)
    trainer = codes(latents).eval()
    before = trainer.codebooks[0].embed.clone()
    trainer(latents + 1)
    assert torch.equal(trainer.codebooks[0].embed, before)


class Counter:
    """A training job of one weight that moves by its gradient."""

    def __init__(self, state: Path, **changes: float) -> None:
        self.module = torch.nn.Linear(1, 1)
        self.rates: list[float] = []
        self.optimizer = run.optimizer([self.module], 1e-3)
        self.job = run.Job(
            self.step,
            lambda: {"accuracy": 0.5},
            lambda: {"model": self.module.state_dict()},
            lambda value: self.module.load_state_dict(value["model"]) and None,
            self.optimizer,
            options(state, **changes),
            warm_up=1,
        )

    def step(self, number: int) -> dict[str, float]:
        self.module(torch.ones(1, 1)).sum().backward()
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        return {"loss": 1.0, "items": 2}


def test_a_job_goes_on_from_its_state_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "job.pt"
    first = Counter(state, hours=0.2 / 3600)
    first.job.run()
    assert first.job.items == 2 * first.job.number > 0
    second = Counter(state, hours=0.0)
    second.job.run()
    assert second.job.number == first.job.number
    assert second.job.items == first.job.items
    for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)
    assert "heldout accuracy 0.500" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [state]


def test_decay_lowers_the_rate_and_leaves_the_state_file_alone(tmp_path: Path) -> None:
    state = tmp_path / "job.pt"
    Counter(state, hours=0.1 / 3600).job.run()
    before = state.read_bytes()
    final = Counter(state, decay=0.2 / 60)
    final.job.run()
    assert state.read_bytes() == before
    assert (tmp_path / "job-final.pt").is_file()
    assert final.rates[0] > 0.8e-3
    assert final.rates[-1] < 0.3e-3


def test_trained_tensors_fit_the_checkpoint() -> None:
    spec = uniform()
    vision = towers.vision_tensors(VisionTrainer(spec).tower)
    planned = {p.name: p for p in main_plan(spec) if p.name.startswith("visual.")}
    tokens = towers.audio_tokenizer_tensors(AudioTrainer(spec))
    planned |= {p.name: p for p in audio_tokenizer_plan(spec.audio_tokenizer)}
    found = vision | tokens
    assert found.keys() == planned.keys()
    for name, tensor in found.items():
        assert tuple(tensor.shape) == planned[name].shape, name
        assert tensor.dtype == getattr(torch, planned[name].dtype), name


def test_towers_load_from_state_files(tmp_path: Path) -> None:
    spec = uniform()
    trainer = AudioTrainer(spec)
    run.save_atomically({"model": trainer.state_dict()}, tmp_path / "audio.pt")
    tokenizer = towers.load_audio_tokenizer(tmp_path / "audio.pt", spec)
    assert torch.equal(tokenizer.conv1.weight, trainer.tokenizer.conv1.weight)
    assert not any(p.requires_grad for p in tokenizer.parameters())
    vision = VisionTrainer(spec)
    run.save_atomically({"model": vision.state_dict()}, tmp_path / "vision.pt")
    again = towers.load_vision_trainer(tmp_path / "vision.pt", spec)
    assert torch.equal(again.row_head.weight, vision.row_head.weight)


def test_a_checkpoint_with_trained_towers_serves_what_was_trained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    spec = uniform()
    write_checkpoint(spec, 1, tmp_path)
    vision, sound = VisionTrainer(spec), AudioTrainer(spec)
    samples = sounds.tone_row(stream("train", "serve", 0, 1)).samples
    mel = load_audio_model(tmp_path).preprocess(samples[None], 24_000)
    with torch.no_grad():
        sound.codes.fill(sound.latents([mel])[0])
    main, tokenizer = tmp_path / "model.safetensors", tmp_path / "audio_tokenizer/model.safetensors"
    save_file(load_file(main) | towers.vision_tensors(vision.tower), main)
    save_file(towers.audio_tokenizer_tensors(sound), tokenizer)

    rounded = vision.tower.bfloat16().float()
    item = vision_data.scene(stream("train", "serve", 0, 0))
    served = load_vision_model(tmp_path).tower([(item.patches, item.grid)])[0]
    assert torch.allclose(served, rounded([(item.patches, item.grid)])[0], atol=1e-5)

    model = load_audio_model(tmp_path)
    reference = sound.tokenizer.bfloat16().float().eval()
    reference.quantizer.load_state_dict(model.tokenizer.quantizer.state_dict())
    codes = reference(mel, [mel.shape[0]])
    assert torch.equal(model.tokenizer(mel, [mel.shape[0]]), codes)
    assert codes.unique().numel() > 4


def test_muon_makes_matrices_nearly_orthogonal() -> None:
    for shape in ((2, 24, 64), (2, 64, 24)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)).float())
        assert 0.5 < float(values.min()) < float(values.max()) < 1.4


def test_the_optimizer_is_adamw_outside_of_hidden_matrices() -> None:
    ours = [nn.Parameter(torch.randn(5, 3)) for _ in range(2)]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    first = MuonAdamW([{"params": ours, "weight_decay": 0.1}], 1e-2)
    second = torch.optim.AdamW(theirs, lr=1e-2, betas=(0.9, 0.98), weight_decay=0.1)
    for _ in range(5):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(5, 3)
            other.grad = mine.grad.clone()
        first.step()
        second.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_muon_takes_every_hidden_matrix_and_no_embedding_head_or_router() -> None:
    trunk = Trunk(PocketSpec().text)
    groups = run.parameter_groups([trunk])
    hidden = {id(p) for p in groups[0]["params"]}
    for name, parameter in trunk.named_parameters():
        matrix = parameter.ndim >= 2 and name not in ("embed.weight", "head.weight")
        assert (id(parameter) in hidden) is (matrix and not name.endswith("mlp.gate")), name


def test_muon_moves_a_stack_of_experts_as_its_matrices_alone() -> None:
    stack = nn.Parameter(torch.randn(3, 8, 4))
    alone = [nn.Parameter(m.clone()) for m in stack.detach()]
    gradient = torch.randn(3, 8, 4)
    stack.grad = gradient.clone()
    for parameter, part in zip(alone, gradient, strict=True):
        parameter.grad = part.clone()
    MuonAdamW([{"params": [stack], "muon": True}], 0.1).step()
    MuonAdamW([{"params": alone, "muon": True}], 0.1).step()
    torch.testing.assert_close(stack.detach(), torch.stack([p.detach() for p in alone]))
