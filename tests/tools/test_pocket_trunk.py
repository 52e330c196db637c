"""The training trunk against transformers' MiMo-V2 and against its own slow forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.tools.geometries import tiny
from tools.pocket.init import write_checkpoint
from tools.pocket.oracle import load_oracle
from tools.pocket.spec import TextSpec
from tools.pocket.trunk.experts import Experts
from tools.pocket.trunk.model import Trunk
from tools.pocket.trunk.tensors import load_trunk, mtp_tensors, trunk_tensors


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny")
    write_checkpoint(tiny(), 3, out)
    return out


def tensors_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors") | load_file(
        checkpoint / "model_mtp.safetensors"
    )


@pytest.fixture(scope="module")
def trunk(checkpoint: Path) -> Trunk:
    model = Trunk(tiny().text)
    load_trunk(model, tensors_of(checkpoint))
    return model.eval()


def prompts(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 300, (batch, length), generator=torch.Generator().manual_seed(0))


def logits(trunk: Trunk, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return trunk.head(trunk(trunk.embed(ids)).hidden)


def test_logits_equal_transformers(checkpoint: Path, trunk: Trunk) -> None:
    ids = prompts(3, 64)
    with torch.no_grad():
        expected = load_oracle(checkpoint)(ids).logits
    assert expected.std() > 1
    torch.testing.assert_close(logits(trunk, ids), expected, atol=2e-3, rtol=1e-3)


def test_padding_at_the_end_changes_nothing(trunk: Trunk) -> None:
    ids = prompts(2, 64)
    valid = torch.arange(64).expand(2, -1) < torch.tensor([[64], [30]])
    with torch.no_grad():
        got = trunk.head(trunk(trunk.embed(ids * valid), valid).hidden)
    torch.testing.assert_close(got[valid], logits(trunk, ids)[valid], atol=1e-3, rtol=1e-3)


def test_saving_gives_back_the_loaded_tensors(checkpoint: Path, trunk: Trunk) -> None:
    stored = {k: t.float() for k, t in tensors_of(checkpoint).items() if "model." in k[:6]}
    saved = trunk_tensors(trunk) | mtp_tensors(trunk)
    assert set(saved) == set(stored) | {"lm_head.weight"}
    assert all(torch.equal(saved[name], tensor) for name, tensor in stored.items())


def filled_experts(seed: int = 0) -> Experts:
    torch.manual_seed(seed)
    experts = Experts(hidden=16, width=8, experts=4, k=2)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    experts.bias.normal_(std=0.2)
    return experts


def test_experts_by_capacity_equal_the_loop_in_value_and_gradient() -> None:
    experts = filled_experts()
    results = []
    for form in (experts, experts.exact):
        x = torch.randn(200, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
        experts.zero_grad()
        y = form(x)
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
        grads = [p.grad.clone() for p in experts.parameters() if p.grad is not None]
        results.append([y.detach(), x.grad, *grads])
    assert len(results[0]) == 5
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_choices_beyond_the_capacity_are_left_out() -> None:
    experts = filled_experts()
    experts.bias.copy_(torch.tensor([10.0, 5.0, 0.0, 0.0]))  # everyone wants experts 0 and 1
    x = torch.randn(400, 16)
    experts.capacity_factor = 1.0  # 200 of the 400 tokens, rounded up to 256
    y = experts(x)
    assert torch.equal(y[256:], torch.zeros(144, 16))
    torch.testing.assert_close(y[:256], experts.exact(x)[:256], atol=1e-5, rtol=1e-4)


def test_balancing_moves_the_bias_towards_idle_experts() -> None:
    experts = filled_experts()
    experts.bias.copy_(torch.tensor([10.0, 5.0, 0.0, 0.0]))
    experts(torch.randn(64, 16), torch.arange(64) < 60)
    assert experts.load.tolist()[:2] == [60, 60]  # only valid rows count
    experts.balance(0.5)
    assert experts.bias.tolist() == [9.5, 4.5, 0.5, 0.5]
    assert experts.load.sum() == 0


def test_mtp_rows_see_shifted_tokens_and_a_window(trunk: Trunk) -> None:
    ids = prompts(1, 32)
    torch.manual_seed(0)
    hidden = torch.randn(1, 32, 32)
    with torch.no_grad():
        base = trunk.draft(1, ids, hidden)
        for change, first in ((20, 18), (31, 29)):  # layer 1: row p reads token p + 2
            other = ids.clone()
            other[0, change] += 1
            moved = (trunk.draft(1, other, hidden) - base).abs().amax(-1)[0] > 1e-5
            # A window of 4 tokens and the token itself; ids past the end repeat the last one.
            assert moved.nonzero().flatten().tolist() == list(range(first, min(first + 5, 32)))


@pytest.mark.parametrize("layout", ["fused_qkv", "split"])
def test_one_dense_window_layer_in_both_layouts(tmp_path: Path, layout: str) -> None:
    text: TextSpec = replace(
        tiny().text, hybrid_layer_pattern=(1,), moe_layer_freq=(0,), qkv_layout=layout
    )
    write_checkpoint(replace(tiny(), text=text), 1, tmp_path)
    model = Trunk(text)
    load_trunk(model, tensors_of(tmp_path))
    ids = prompts(1, 40)
    base = logits(model, ids)
    ids[0, 10] += 1
    moved = (logits(model, ids) - base).abs().amax(-1)[0] > 1e-4
    assert moved.nonzero().flatten().tolist() == [10, 11, 12, 13, 14]
