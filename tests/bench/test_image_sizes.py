"""The mix of image sizes: read from files in the trace's form, and drawn from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.benchmarks.packing import cut
from bench.image_sizes import draw_grids, mix_folder, token_mix


def write(
    folder: Path, number: int, windows: dict[str, str], rates: list[tuple[int, float]]
) -> None:
    documents = {begin: {"image_tokens": shares} for begin, shares in windows.items()}
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(documents))
    lines = [f"{start},{rate},1.0,Gamma,1.0,1.0" for start, rate in rates]
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(lines))


def test_windows_count_by_their_rate(tmp_path: Path) -> None:
    write(
        tmp_path,
        0,
        {"0": "{100: 0.5, 0: 0.5}", "1200": "{300: 1.0}"},
        [(0, 1.0), (600, 3.0), (1200, 10.0)],
    )
    write(tmp_path, 1, {"0": "{100: 1.0}"}, [(0, 0.5)])
    assert token_mix(tmp_path) == {100: 2.5, 300: 10.0}


def test_an_empty_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no image of the trace"):
        token_mix(tmp_path)
    monkeypatch.setenv("OMNISERVE_TRACES", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="set OMNISERVE_TRACES"):
        mix_folder()
    (tmp_path / "servegen-mm-image").mkdir()
    assert mix_folder() == tmp_path / "servegen-mm-image"


def test_grids_have_about_the_drawn_tokens() -> None:
    grids = draw_grids({6: 1.0, 1200: 3.0}, 200, merge=2, seed=0)
    tokens = [t * h * w // 4 for t, h, w in grids]
    assert all(abs(n - 6) <= 2 or abs(n - 1200) <= 40 for n in tokens)
    assert 100 < sum(n > 100 for n in tokens) < 190
    assert grids == draw_grids({6: 1.0, 1200: 3.0}, 200, merge=2, seed=0)
    assert all(h % 2 == w % 2 == 0 for _, h, w in grids)


def test_batches_keep_both_limits_and_the_order() -> None:
    grids = draw_grids({6: 1.0, 300: 1.0, 1200: 1.0}, 50, merge=2, seed=1)
    batches = cut(grids, 8, 6_000)
    assert [grid for batch in batches for grid in batch] == grids
    for batch in batches:
        assert len(batch) <= 8
        assert sum(t * h * w for t, h, w in batch) <= 6_000 or len(batch) == 1
