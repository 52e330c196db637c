"""The engine's drafts against an implementation that shares no code with it (tools/pocket/trunk).

Losslessness (test_parity.py) holds for any drafts; here the number of verify steps must be what
the reference's drafts predict: layer k at row p sees token p + 1 + k and the target's hidden state
of row p, and predicts token p + 2 + k (mimo-v2.md section 3.3).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.llm.engines import Engines, greedy, random_prompt
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


def test_accepted_drafts_are_those_of_the_reference(
    engines: Engines, predictable: Path, reference: Trunk
) -> None:
    engine = engines.get(mtp=True, model_path=str(predictable))
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
