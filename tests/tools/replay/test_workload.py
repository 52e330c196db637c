"""Traces and what is made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.tools.replay.fleets import BLOCK, conversations, workload
from tools.replay import traces
from tools.replay.workload import merged


def test_a_mooncake_file_is_read(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000, "input_length": 1000, "output_length": 0, "hash_ids": [0, 1]},
        {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 2, 3]},
        {"timestamp": 4000, "input_length": 1700, "output_length": 5, "hash_ids": [0, 2, 4, 5]},
        {"timestamp": 5000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 6, 7]},
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    read = traces.mooncake("made", file)
    assert read.arrival.tolist() == [0.0, 3.0, 4.0, 5.0]
    assert read.output_tokens.tolist() == [5, 1, 5, 5]
    assert [read.path(i) for i in range(2)] == [[0, 2, 3], [0, 1]]
    # The third begins with all full blocks of the first; sharing less is no continuation.
    assert read.session.tolist() == [0, 1, 0, 2]
    assert read.infinite_hits() == pytest.approx((512 + 1024 + 512) / 5100)


def test_requests_of_a_tick_are_spread_over_it_in_their_order() -> None:
    jitter = np.random.default_rng(1).uniform(-0.003, 0.003, 400)
    ticks = np.sort(np.repeat(np.arange(40) * 3.0, 10) + jitter)
    spread = traces.spread_ticks(ticks)
    assert (np.diff(spread) >= 0).all()
    assert (np.floor(spread / 3.0) == np.round(ticks / 3.0)).all()
    # As many come in each third of a tick.
    thirds = np.bincount(((spread % 3.0) // 1.0).astype(int), minlength=3)
    assert thirds.min() > 100
    assert (traces.spread_ticks(ticks) == spread).all()
    # What was recorded as it came stays.
    recorded = np.sort(np.random.default_rng(2).uniform(0, 100, 300))
    assert (traces.spread_ticks(recorded) == recorded).all()
    few = np.array([0.0, 3.0, 4.0, 5.0])
    assert (traces.spread_ticks(few) == few).all()


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 10, "output_length": 1}\n')
    with pytest.raises(ValueError, match=r"trace\.jsonl, line 1: 'hash_ids'"):
        traces.mooncake("made", file)
    row = {"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [0]}
    file.write_text(json.dumps(row))
    with pytest.raises(ValueError, match="blocks do not cover the input"):
        traces.mooncake("made", file)


def test_an_azure_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:03.9799600,4808,10\n"
    )
    read = traces.azure("made", file)
    assert read.arrival.tolist() == pytest.approx([0.0, 0.052])
    assert read.input_tokens.tolist() == [4808, 3180]
    assert read.infinite_hits() == 0.0


def test_a_missing_folder_says_what_belongs_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(traces.FOLDER_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="kvcache-ai/Mooncake"):
        traces.folder()
    with pytest.raises(KeyError, match="there are: conversation, synthetic"):
        traces.load("nothing")


def test_rates_copies_and_parts_keep_requests_whole() -> None:
    made = conversations(5, 3, seed=1)
    fast = made.at_rate(4)
    assert fast.seconds == pytest.approx(made.seconds / 4)
    many = made.copies(3, seed=0)
    many.check()
    assert len(many) == 45
    assert len(set(many.session.tolist())) == 15
    assert many.infinite_hits() == pytest.approx(made.infinite_hits())
    part = made.first(4)
    assert [part.path(i) for i in range(4)] == [made.path(i) for i in range(4)]
    assert not made.at_once().arrival.any()
    with pytest.raises(ValueError, match="must be positive"):
        made.at_rate(0)


def test_coarser_blocks_name_the_same_prefixes() -> None:
    made = conversations(6, 4, seed=2)
    coarse = made.coarser(3)
    coarse.check()
    assert coarse.block_tokens == 3 * BLOCK
    for i in range(len(made)):
        path = made.path(i)
        assert coarse.path(i) == [
            path[min(3 * k + 2, len(path) - 1)] for k in range(-(-len(path) // 3))
        ]
    assert coarse.infinite_hits() <= made.infinite_hits()


def test_encoding_delays_the_model_but_not_the_clock() -> None:
    made = workload([[1], [2]], [0.0, 1.0])
    slow = replace(made, ready=np.array([5.0, 5.0]))
    assert slow.at_rate(2).ready.tolist() == [5.0, 4.5][::-1]
    assert slow.at_rate(2).arrival.tolist() == [0.5, 0.0]
    with pytest.raises(ValueError, match="ready before arrival"):
        replace(made, ready=np.array([-1.0, 1.0])).check()
    with pytest.raises(ValueError, match="different block sizes"):
        merged("both", [made, replace(made, block_tokens=8)])
