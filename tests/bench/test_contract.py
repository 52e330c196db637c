"""The contract that every benchmark is printed by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import registry
from bench.__main__ import main
from bench.result import Bar, Figure, Result


def test_figures_are_medians_with_their_spread() -> None:
    figure = Figure.of([3.0, 1.0, 2.0, 10.0])
    assert (figure.median, figure.min, figure.max, figure.n) == (2.5, 1.0, 10.0, 4)
    with pytest.raises(ValueError, match="at least one reading"):
        Figure.of([])


@pytest.mark.parametrize(
    ("bar", "met"),
    [
        (Bar(2.0, at_least=2.0), True),
        (Bar(1.9, at_least=2.0), False),
        (Bar(1.1, at_most=1.2), True),
        (Bar(1.3, at_most=1.2), False),
    ],
)
def test_bars(bar: Bar, met: bool) -> None:
    assert bar.met is met
    assert bar.document()["met"] is met


def test_a_bar_has_one_bound() -> None:
    with pytest.raises(ValueError, match="either at_least or at_most"):
        Bar(1.0)
    with pytest.raises(ValueError, match="either at_least or at_most"):
        Bar(1.0, at_least=1.0, at_most=2.0)


def test_the_last_line_is_the_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(quick: bool) -> Result:
        print("working")
        value = 1.0 if quick else 3.0
        return Result({"n": 4}, {"ratio": Figure.of([value])}, {"ratio": Bar(value, at_least=2.0)})

    monkeypatch.setattr(registry, "load", lambda name: run)
    out = tmp_path / "result.json"
    assert main(["anything", "--quick", "--check", "--out", str(out)]) == 1
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads(out.read_text())
    assert set(printed) == {"bench", "setup", "figures", "bars"}
    assert printed["setup"]["quick"] is True
    assert printed["setup"]["sizes"] == {"n": 4}
    assert {"machine", "versions", "commit"} <= set(printed["setup"])
    assert printed["figures"]["ratio"]["median"] == 1.0
    assert printed["bars"]["ratio"] == {"value": 1.0, "at_least": 2.0, "met": False}
    assert main(["anything", "--quick"]) == 0
    assert main(["anything", "--check"]) == 0


def test_a_checkpoint_goes_to_benchmarks_that_take_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Path | None] = []

    def with_one(quick: bool, checkpoint: Path | None = None) -> Result:
        given.append(checkpoint)
        return Result({}, {}, {})

    monkeypatch.setattr(registry, "load", lambda name: with_one)
    assert main(["anything"]) == 0
    assert main(["anything", "--checkpoint", str(tmp_path)]) == 0
    assert given == [None, tmp_path]
    monkeypatch.setattr(registry, "load", lambda name: lambda quick: Result({}, {}, {}))
    with pytest.raises(SystemExit):
        main(["anything", "--checkpoint", str(tmp_path)])


def test_every_benchmark_is_listed_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == registry.names()
    assert all(len(line.split()) > 4 for line in lines)
    assert {"startup", "gateway"} <= set(registry.names())


def test_an_unknown_name_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["nothing"])
    assert stop.value.code == 2
    assert "there are: " in capsys.readouterr().err
