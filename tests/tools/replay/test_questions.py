"""The command line on small workloads: every question has an answer, as text, PNG and HTML."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llm.buckets import BucketPolicy
from tests.tools.replay.fleets import COST, conversations, setup, workload
from tools.replay import experts, questions, report, servegen, traces
from tools.replay.__main__ import main
from tools.replay.buckets import bucketed, split
from tools.replay.fleets import at_load, fleet, saturated_s, simulate
from tools.replay.generate import agents, length_mix
from tools.replay.replica import Limits
from tools.replay.workload import Workload


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small conversation trace and two ServeGen clients."""
    made = conversations(20, 4, seed=0, most=3)
    rows = [
        {
            "timestamp": int(t * 1000),
            "input_length": len(made.path(i)) * 512 - 5,
            "output_length": 20,
            "hash_ids": made.path(i),
        }
        for i, t in enumerate(made.arrival.tolist())
    ]
    (tmp_path / traces.MOONCAKE["conversation"]).write_text("\n".join(map(json.dumps, rows)))
    place = tmp_path / servegen.FOLDER
    place.mkdir()
    for number, kind in enumerate(("Gamma,2.0,0.25", "Weibull,1.5,0.6")):
        lines = [f"{600 * w},2.0,0.7,{kind}" for w in range(84, 100)]
        (place / f"chunk-{number}-trace.csv").write_text("\n".join(["0,0,0,,0,0", *lines]))
        part = {
            "text_tokens": "{50: 1.0}",
            "image_tokens": "{800: 0.5, 1200: 0.5}",
            "image_count": "{1: 0.7, 2: 0.3}",
            "output_tokens": "{30: 1.0}",
        }
        (place / f"chunk-{number}-dataset.json").write_text(json.dumps({"0": part}))
    monkeypatch.setenv(traces.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "--nodes", "2", "--load", "0.6"],
        ["capacity", "--rate", "2", "--ttft", "2"],
        ["window", "--nodes", "2"],
        ["tiers", "--nodes", "2"],
        ["buckets", "--nodes", "3", "--requests", "60"],
        ["experts", "--sizes", "8", "16"],
        ["scale", "--sizes", "1", "2", "--workload", "agents", "--requests", "40"],
        ["compare", "--nodes", "2", "--workload", "multimodal", "--requests", "60"],
    ],
)
def test_questions_are_answered(
    trace: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(trace / "out")]) == 0
    printed = capsys.readouterr().out
    assert "workload: " in printed
    assert (trace / f"out/{arguments[0]}.png").read_bytes().startswith(b"\x89PNG")
    page = (trace / f"out/{arguments[0]}.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page


def test_a_missing_trace_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(traces.FOLDER_VARIABLE, str(tmp_path))
    assert main(["compare"]) == 2
    assert "mooncake_conversation.jsonl" in capsys.readouterr().err


def test_pictures_delay_and_are_shared(trace: Path) -> None:
    made = servegen.multimodal(200, seed=0, folder=trace)
    again = servegen.multimodal(200, seed=0, folder=trace)
    assert made.blocks.tolist() == again.blocks.tolist()
    assert (made.ready >= made.arrival).all()
    assert (made.ready > made.arrival).any()
    few = servegen.multimodal(200, seed=0, encoders=1, folder=trace)
    assert (few.ready - few.arrival).mean() > (made.ready - made.arrival).mean()
    with pytest.raises(ValueError, match="ServeGen has only"):
        servegen.multimodal(10**6, seed=0, folder=trace)


def test_capacity_finds_the_smallest_fleet() -> None:
    offered = agents(60, 5, 20.0, seed=1)
    answer = questions.capacity(offered, 0.5, 0.9, "v2.5", 0.0, lambda _: None)
    late = {int(r["nodes"]): float(r["TTFT s"]) for r in answer.rows}
    found = int(answer.sentences[0].split()[0])
    assert late[found] <= 0.5
    assert found == 1 or late[found - 1] > 0.5


def test_load_is_relative_to_saturation() -> None:
    offered, nodes = agents(60, 5, 20.0, seed=1), fleet(2)
    half = at_load(nodes, offered, 0.5)
    assert half.seconds == pytest.approx(2 * saturated_s(nodes, offered))
    assert simulate(nodes, half).utilisation < 0.7
    for wrong in ({"router": "none"}, {"queue": "none"}):
        with pytest.raises(KeyError, match="there are: "):
            simulate(nodes, half, **wrong)


def test_buckets_keep_classes_apart_and_get_engines_by_work() -> None:
    short = [[i] for i in range(60)]
    long = [list(range(1000 * i, 1000 * i + 40)) for i in range(1, 4)]
    prompts = workload(short + long)
    engines = setup(3, limits=Limits(chunk=64), cost=replace(COST, ranks=2))
    bounds = (100, 10_000)
    parts = split(engines, prompts, bounds)
    assert sum(parts) == 3
    assert min(parts) >= 1
    results = bucketed(engines, prompts, parts, BucketPolicy(bounds, busy_tokens=1e9))
    first_long = parts[0] * 2
    assert (results.replica[:60] < first_long).all()
    assert (results.replica[60:] >= first_long).all()
    with pytest.raises(ValueError, match="cannot be split"):
        split(setup(1), prompts, bounds)
    with pytest.raises(ValueError, match="classes have 2 replicas, the fleet 6"):
        bucketed(engines, prompts, [1, 0], BucketPolicy(bounds))


def test_smaller_groups_of_experts_have_less_room() -> None:
    answer = experts.experts(length_mix(50, 1.0, 0), "pro", (8, 16, 32), 8, seed=0)
    room = [float(r["KV tokens per rank, window"]) for r in answer.rows]
    assert room == sorted(room)
    for row in answer.rows:
        assert row["KV tokens per rank, window"] >= row["KV tokens per rank, no window"]


@pytest.mark.parametrize("made", [agents(300, 5, 4.0, 3), length_mix(40, 2.0, 3)])
def test_generated_workloads_are_sound_and_repeatable(made: Workload) -> None:
    made.check()
    assert np.all(np.diff(made.arrival) >= 0)
    if made.name.startswith("agents"):
        assert made.infinite_hits() > 0.4
    else:
        assert made.infinite_hits() == 0


def test_tables_are_aligned() -> None:
    answer = questions.Answer(
        "T?", {"seed": "0"}, [{"a": "x", "b": 12345.6}, {"a": "long", "b": 0.123456}], ["So."]
    )
    assert report.text(answer).splitlines()[3:] == [
        "a          b",
        "x     12,346",
        "long   0.123",
        "",
        "So.",
    ]
