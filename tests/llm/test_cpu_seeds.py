"""Seeds per request and choice, and the ids they are derived from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from llm.cpu.seeds import seed_for, with_min_p, with_seeds
from llm.request_ids import choice_of, forget, next_part, root_of


def test_choice_zero_has_the_requests_own_seed_and_all_fit_int64() -> None:
    for seed in (-(2**63), -1, 0, 7, 2**63 - 1):
        seeds = [seed_for(seed, k) for k in range(50)]
        assert seeds[0] == seed
        assert len(set(seeds)) == 50
        torch.tensor(seeds, dtype=torch.int64)
    assert seed_for(1, 1) not in {seed_for(2, k) for k in range(50)}


def test_seeds_are_given_or_random_and_stay() -> None:
    def request(rid: str, seed: int | None) -> Any:
        return SimpleNamespace(rid=rid, sampling_params=SimpleNamespace(sampling_seed=seed))

    build = with_seeds(lambda cls, batch, vocab_size: SimpleNamespace(sampling_seed=None))
    batch = SimpleNamespace(
        reqs=[request("a-1", 5), request("a-2", 5), request("b", None), request("c", None)]
    )
    first = build(object, batch, 10).sampling_seed.tolist()
    assert first[0] == 5
    assert len(set(first)) == 4
    assert build(object, batch, 10).sampling_seed.tolist() == first


def test_min_p_keeps_the_tokens_near_the_best() -> None:
    seen = []
    sample = with_min_p(lambda probs, k, p, m, need, *rest: seen.append((probs, need)))
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.35, 0.25]])
    sample(probs, None, None, torch.tensor([0.5, 0.0]), True, None, None)
    kept, need = seen[0]
    assert not need
    torch.testing.assert_close(kept, torch.tensor([[0.5, 0.3, 0.0], [0.4, 0.35, 0.25]]))


def test_part_ids_lead_back_to_request_and_choice() -> None:
    request = SimpleNamespace(rid=["abc_0"])
    ids = []
    for _ in range(4):
        part = SimpleNamespace(rid=request.rid)
        ids.append(next_part(part))
    assert ids == ["abc-0", "abc-1", "abc-2", "abc-3"]
    assert [choice_of(i) for i in ids] == [0, 0, 1, 2]
    assert {root_of(i) for i in [*ids, "abc", "abc_0"]} == {"abc"}
    assert choice_of("abc") == 0
    forget("abc")
    assert next_part(SimpleNamespace(rid="abc")) == "abc-0"
    forget("abc")
