"""The mix of image sizes: read from files in the trace's form, and drawn from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench.image_sizes import draw_grids, mix_folder, token_mix
from bench.packing import Limits, cut, cut_by_class, padding
from encoders.vision.packing import Grid


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


def test_a_short_sample_has_the_shares_of_the_mix() -> None:
    grids = draw_grids({6: 1.0, 300: 1.0, 1200: 2.0}, 16, merge=2, seed=3)
    tokens = sorted(t * h * w // 4 for t, h, w in grids)
    assert [sum(low <= n < high for n in tokens) for low, high in PARTS] == [4, 4, 8]


PARTS = ((0, 50), (50, 700), (700, 2000))


@pytest.mark.parametrize("make", [cut, cut_by_class])
def test_batches_keep_both_limits_and_every_image(
    make: Callable[[Sequence[Grid], Limits], list[list[Grid]]],
) -> None:
    grids = draw_grids({6: 1.0, 300: 1.0, 1200: 1.0}, 50, merge=2, seed=1)
    batches = make(grids, Limits(8, 6_000))
    assert sorted(grid for batch in batches for grid in batch) == sorted(grids)
    for batch in batches:
        assert len(batch) <= 8
        assert sum(t * h * w for t, h, w in batch) <= 6_000 or len(batch) == 1


def test_order_of_arrival_is_kept_and_classes_pad_less() -> None:
    grids = draw_grids({6: 1.0, 300: 1.0, 1200: 1.0}, 50, merge=2, seed=1)
    limits = Limits(8, 6_000)
    batches = cut(grids, limits)
    assert [grid for batch in batches for grid in batch] == grids
    assert padding(batches) > padding(cut_by_class(grids, limits)) >= 1


def test_padding_counts_up_to_the_largest_of_each_batch() -> None:
    assert padding([[(1, 2, 2), (1, 4, 4)], [(1, 2, 2)]]) == 36 / 24
