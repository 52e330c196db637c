"""The engine's drafts against an implementation that shares no code with it (tools/pocket/trunk).

Losslessness (test_parity.py) holds for any drafts; here the number of verify steps must be what
the reference's drafts predict: layer k at row p sees token p + 1 + k and the target's hidden state
of row p, and predicts token p + 2 + k (mimo-v2.md section 3.3).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.llm.engines import Engines, greedy, oracle_greedy, random_prompt
from tools.pocket.oracle import load_oracle
from tools.pocket.spec import PocketSpec
from tools.pocket.train.mtp import walk
from tools.pocket.trunk.model import Trunk
from tools.pocket.trunk.tensors import load_trunk

pytestmark = pytest.mark.engine

NEW = 120


@pytest.fixture(scope="module")
def predictable(pocket_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose drafts are right now and then, as random ones never are.

    Layers add little to the embeddings, so the next token nearly follows from the last one, and
    the MTP layers start from the embedding of their input token.
    """
    out = tmp_path_factory.mktemp("predictable") / "checkpoint"
    shutil.copytree(pocket_checkpoint, out)
    for name in ("model.safetensors", "model_mtp.safetensors"):
        tensors = load_file(out / name)
        for key, tensor in tensors.items():
            if key.endswith(("o_proj.weight", "down_proj.weight")):
                tensors[key] = tensor * 0.08
            elif key.endswith("eh_proj.weight"):
                hidden = tensor.shape[0]
                start = torch.eye(hidden, dtype=tensor.dtype)
                tensors[key] = torch.cat((start, tensor[:, hidden:] * 0.05), 1)
        save_file(tensors, out / name, {"format": "pt"})
    return out


@pytest.fixture(scope="module")
def reference(predictable: Path) -> Trunk:
    trunk = Trunk(PocketSpec().text)
    files = ("model.safetensors", "model_mtp.safetensors")
    tensors = {k: v for name in files for k, v in load_file(predictable / name).items()}
    load_trunk(trunk, tensors)
    return trunk.float().eval()


@pytest.fixture(scope="module")
def oracle_of_predictable(predictable: Path) -> Any:
    return load_oracle(predictable)


def accept_lengths(trunk: Trunk, ids: list[int], prompt: int) -> list[int]:
    window = trunk.text.sliding_window
    padded = torch.tensor([ids + ids[-1:] * (-len(ids) % window)])
    with torch.inference_mode():
        hidden = trunk(trunk.embed(padded)).hidden
        drafts = [
            trunk.head(trunk.draft(k, padded, hidden))[0].argmax(-1).tolist()
            for k in range(len(trunk.mtp))
        ]
    return walk(ids, drafts, prompt, len(ids))


def test_output_does_not_depend_on_when_drafting_is_off(
    engines: Engines, predictable: Path, oracle_of_predictable: Any
) -> None:
    """Greedy tokens across switches: a trial of the other way begins after eight steps."""
    engine = engines.get(mtp=True, model_path=str(predictable))
    engine.flush_cache()
    prompts = [random_prompt(length, 70 + length) for length in (9, 33, 60)]
    expected = [oracle_greedy(oracle_of_predictable, prompt, 60) for prompt in prompts]
    for prompt, tokens in zip(prompts, expected, strict=True):
        out = engine.generate(input_ids=prompt, sampling_params=greedy(60))
        assert out["output_ids"] == tokens
    batch = engine.generate(input_ids=prompts, sampling_params=[greedy(60)] * 3)
    assert [out["output_ids"] for out in batch] == expected
    state = engine.get_server_info()["internal_states"][0]["mtp"]
    assert state["adaptive"]
    for size in ("1", "2"):
        steps = state["by_batch"][size]["steps"]
        assert steps["plain"] >= 8
        assert steps["drafted"] >= 8


def test_accepted_drafts_are_those_of_the_reference(
    engines: Engines, predictable: Path, reference: Trunk
) -> None:
    engine = engines.get(mtp=True, adaptive=False, model_path=str(predictable))
    seen: list[int] = []
    for length in (7, 40, 90, 121):
        prompt = random_prompt(length, 50 + length)
        for hit in ("cold", "after a prefix hit"):
            out = engine.generate(input_ids=prompt, sampling_params=greedy(NEW))
            lengths = accept_lengths(reference, prompt + out["output_ids"], length)
            assert out["meta_info"]["spec_verify_ct"] == len(lengths), f"{length} tokens, {hit}"
        seen += lengths
    # Every length occurs, or the test would say little about the later layers.
    assert set(seen) == {1, 2, 3, 4}


def test_sampled_tokens_have_the_distribution_of_the_target(
    engines: Engines, predictable: Path, oracle_of_predictable: Any
) -> None:
    """The second and third token of many samples against their exact marginals.

    Seeds make the samples the same in every run. What a sample of that size may differ by is
    taken from samples drawn from the exact distribution itself.
    """
    temperature, samples, prompt = 0.2, 600, random_prompt(12, 90)
    exact = _marginals(oracle_of_predictable, prompt, temperature)
    engine = engines.get(mtp=True, adaptive=False, model_path=str(predictable))
    drawn: list[list[int]] = []
    accepted = 0
    for start in range(0, samples, 8):
        sampling = [
            {
                "temperature": temperature,
                "max_new_tokens": 3,
                "ignore_eos": True,
                "sampling_seed": 1000 + start + i,
            }
            for i in range(8)
        ]
        for out in engine.generate(input_ids=[prompt] * 8, sampling_params=sampling):
            drawn.append(out["output_ids"])
            accepted += out["meta_info"]["spec_verify_ct"] < 2
    assert accepted > samples // 20, "no draft was accepted: the test would show nothing"
    generator = torch.Generator().manual_seed(0)
    for position, probabilities in enumerate(exact):
        tokens = torch.tensor([ids[position + 1] for ids in drawn])
        noise = [
            _distance(
                torch.multinomial(probabilities, samples, replacement=True, generator=generator),
                probabilities,
            )
            for _ in range(50)
        ]
        assert _distance(tokens, probabilities) <= max(noise)


def _distance(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Total variation between a sample and a distribution."""
    share = torch.bincount(tokens, minlength=len(probabilities)) / len(tokens)
    return float(0.5 * (share - probabilities).abs().sum())


def _marginals(model: Any, prompt: list[int], temperature: float) -> list[torch.Tensor]:
    """Exact distributions of the second and the third token after ``prompt``.

    Paths less likely than one in ten thousand are left out.
    """

    def following(rows: list[list[int]]) -> torch.Tensor:
        with torch.inference_mode():
            parts = [
                model(torch.tensor(rows[i : i + 64])).logits[:, -1] for i in range(0, len(rows), 64)
            ]
        return (torch.cat(parts) / temperature).double().softmax(-1)

    paths, weights = [prompt], torch.ones(1, dtype=torch.double)
    marginals = []
    for _ in range(3):
        joint = weights.unsqueeze(1) * following(paths)
        marginals.append(joint.sum(0))
        likely = (joint > 1e-4).nonzero().tolist()
        weights = torch.stack([joint[i, token] for i, token in likely])
        paths = [[*paths[i], token] for i, token in likely]
    return [(m / m.sum()).float() for m in marginals[1:]]
