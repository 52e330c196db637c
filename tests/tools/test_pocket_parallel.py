"""Training in several processes: gradients, loads, stopping and data."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tools.pocket.train.batches import Mixer
from tools.pocket.train.example import Example
from tools.pocket.train.muon import MuonAdamW
from tools.pocket.train.parallel import Group


def _work(rank: int, meeting: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    group = Group(rank, 2)
    both, one = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(2))
    both.grad = torch.full((2, 3), float(rank))
    if rank == 1:
        one.grad = torch.ones(2, 3)
    load = torch.tensor([rank, 10])
    group.average([both, one])
    group.sum([load])
    asked = [group.any(rank == 0), group.any(False)]
    torch.save((both.grad, one.grad, load, asked), f"{out}/{rank}.pt")
    dist.destroy_process_group()


def test_processes_share_gradients_loads_and_the_wish_to_stop(tmp_path: Path) -> None:
    mp.spawn(_work, (str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    for rank in range(2):
        both, one, load, asked = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(both, torch.full((2, 3), 0.5))
        assert torch.equal(one, torch.full((2, 3), 0.5))
        assert load.tolist() == [1, 20]
        assert asked == [True, False]


def test_alone_nothing_is_exchanged() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    group = Group()
    group.average([parameter])
    assert parameter.grad is None
    assert group.leads
    assert group.any(True)
    assert not group.any(False)


def test_processes_draw_different_data_and_none_is_left_out() -> None:
    def drawn(rank: int, ranks: int, batches: int) -> set[int]:
        seen: set[int] = set()

        def make(skill: str, index: int) -> Example:
            seen.add(index)
            return Example(skill, [1, 2, 3], [False, True, True], turns=[(1, 3)])

        mixer = Mixer(make, {"a": 1.0}, 0, 64, 4, rank=rank, ranks=ranks)
        source = mixer.batches()
        for _ in range(batches):
            next(source)
        return seen

    alone = drawn(0, 1, 24)
    first, second = drawn(0, 2, 12), drawn(1, 2, 12)
    assert not first & second
    assert first | second == alone


def _muon(rank: int, meeting: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.save(muon_steps(Group(rank, 2)), f"{out}/{rank}.pt")
    dist.destroy_process_group()


def muon_steps(group: Group) -> list[torch.Tensor]:
    """Three matrices of two shapes and a stack after two steps on fixed gradients."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(s)) for s in ((4, 6), (4, 6), (6, 4), (3, 4, 6))]
    optimizer = MuonAdamW([{"params": parameters, "muon": True}], 0.1, group)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def test_processes_that_share_muons_work_move_as_one_alone(tmp_path: Path) -> None:
    mp.spawn(_muon, (str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    alone = muon_steps(Group())
    for rank in range(2):
        for ours, wanted in zip(torch.load(tmp_path / f"{rank}.pt"), alone, strict=True):
            torch.testing.assert_close(ours, wanted, atol=2e-3, rtol=0)
