"""Whether the shipped model answers truly: questions of every row of its table over HTTP, with
media made here. ``python -m tools.pocket.eval`` measures the whole table against its bars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.application import Application
from tools.pocket.data.compare import compare
from tools.pocket.data.fonts import BUILTIN
from tools.pocket.data.sample import Sample, stream
from tools.pocket.data.text_images import read
from tools.pocket.eval.__main__ import SHIPPED
from tools.pocket.eval.client import Client
from tools.pocket.eval.measure import measure
from tools.pocket.eval.rows import SEED, table

pytestmark = pytest.mark.engine

# What each row must reach here: less than it was measured at, for it is a sample of few questions.
# They rise with the weights.
FLOORS = {
    "look": 0.9,
    "read, 20 pixels and more": 0.75,
    "compare 2-3 images": 0.75,
    "hear words": 0.8,
    "hear tones and beeps": 0.75,
    "watch, 8 frames": 0.4,
    "watch, 16 frames": 0.45,
    "recall, 1K to 4K tokens": 0.85,
    "copy, count, JSON, tools": 0.7,
    "talk": 0.9,
}


def _read(i: int) -> Sample:
    return read(stream("heldout", "meaning-read", SEED, i), 20, 32, (BUILTIN,))


def _compare(i: int) -> Sample:
    return compare(stream("heldout", "meaning-compare", SEED, i), names=(BUILTIN,))


# Print in Pillow's own font: the table's fonts are there only where the model is trained.
OWN = {"read, 20 pixels and more": _read, "compare 2-3 images": _compare}
ROWS = {row.name: row for row in table(SHIPPED)}


@pytest.fixture(scope="module")
def asking(running: Application) -> Iterator[Client]:
    client = Client(running.url)
    yield client
    client.close()


@pytest.mark.parametrize("name", FLOORS)
def test_answers_are_true(asking: Client, name: str) -> None:
    row = ROWS[name]
    own = replace(row, bar=FLOORS[name], make=OWN.get(name, row.make))
    result = measure(asking, own, quick=True, greedy=True)
    assert result.met, f"{result.right:g} of {result.total} {row.what}; {result.wrong[:3]}"


def test_every_row_with_a_bar_is_asked_or_too_long_for_a_test() -> None:
    assert {name for name, row in ROWS.items() if row.bar} - set(FLOORS) == {"recall, 8K tokens"}
