"""Which positions of a prompt are inserted on the way, and when the store hears of a use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llm.tiers_tree import TreeTiers, checkpoint, inner_tails

PAGE, WINDOW = 16, 40


class Tree(SimpleNamespace):
    """As much of SGLang's tree as the hooks look at."""

    def supports_swa(self) -> bool:
        return True

    def is_root(self, node: int) -> bool:
        return node == 0


def tree(pairs: bool = False, **options: Any) -> Tree:
    core = SimpleNamespace(
        is_eagle=pairs,
        get_prefix_hash_values=lambda node: [f"{n}" for n in range(node)],
        get_hash_values=lambda node: [f"{node}"],
    )
    touched: list[list[str]] = []
    found = Tree(
        page_size=PAGE,
        sliding_window_size=WINDOW,
        tree_core=core,
        enable_storage=True,
        cache_controller=SimpleNamespace(storage_backend=SimpleNamespace(touch=touched.append)),
        touched=touched,
    )
    found._omniserve_tiers = TreeTiers(options)
    return found


def request(prompt: int, *, protected: int = 0, evicted: int = 0, node: int = 0) -> Any:
    kv = SimpleNamespace(cache_protected_len=protected, get_evicted_seqlen=lambda _: evicted)
    return SimpleNamespace(
        kv=kv,
        origin_input_ids=[0] * prompt,
        last_node=node,
        finished=lambda: False,
        cached_tokens_device=0,
        cached_tokens_host=0,
        cached_tokens_storage=0,
    )


def tails_of(req: Any, up_to: int, tails: list[int], pairs: bool = False) -> list[int]:
    of = tree(pairs, swa_tails=tails)
    return inner_tails(of, of._omniserve_tiers, req, up_to)


def test_positions_are_whole_pages_before_the_end() -> None:
    assert tails_of(request(200), 200, [16, 70, 128, 200, 500]) == [16, 64, 128, 192]
    assert tails_of(request(200), 200, [192, 193]) == [192]
    assert tails_of(request(200), 192, [192]) == []


def test_with_drafting_a_key_is_one_token_longer() -> None:
    assert tails_of(request(200), 200, [64, 128], pairs=True) == [65, 129]
    assert tails_of(request(193), 193, [192], pairs=True) == []


def test_what_the_tree_has_and_answers_are_left_alone() -> None:
    assert tails_of(request(200, protected=64), 200, [32, 64, 128]) == [128]
    assert tails_of(request(100), 300, [64, 128]) == [64]


def test_a_position_needs_its_whole_window() -> None:
    # Windows are whole pages: 48 tokens before the position.
    assert tails_of(request(300, evicted=80), 300, [112, 128, 144]) == [128, 144]


@pytest.mark.parametrize("finished", [False, True])
def test_a_checkpoint_goes_in_steps_until_the_request_is_done(finished: bool) -> None:
    of, req, calls = tree(swa_tails=[64, 128]), request(200), []
    req.finished = lambda: finished
    checkpoint(lambda _tree, _req, up_to: calls.append(up_to), of, req, up_to=200)
    assert calls == ([200] if finished else [64, 128, 200])
    assert of._omniserve_tiers.tokens["prompt"] == (200 if finished else 0)


def test_the_store_hears_of_a_used_prefix_once_an_interval() -> None:
    of = tree(touch_interval_s=3600.0)
    for node in (3, 3, 0, 4):
        checkpoint(lambda *_, **__: None, of, request(200, node=node), up_to=200)
    assert of.touched == [["0", "1", "2", "3"], ["0", "1", "2", "3", "4"]]
    always = tree(touch_interval_s=0.0)
    for _ in range(2):
        checkpoint(lambda *_, **__: None, always, request(200, node=1), up_to=200)
    assert len(always.touched) == 2
