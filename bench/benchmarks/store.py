"""L3 read and write throughput against a plain copy of the same bytes; latency of one page.

Both sides move the same pages between memory and files of the same file system, in the same order:
the store through its tier (header, checksum, index, then page), the copy with one system call a
page. Neither asks for the bytes to be on the disk before it returns. Latency is that of a look-up
and read of one page.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.result import Bar, Figure, Result
from llm.store.entry import Views
from llm.store.tier import Tier

PAGE = 2**20
SMALL = 2**16
BATCH = 128
PLACES = {"memory": "/dev/shm", "disk": "/var/tmp"}
BAR = 0.7


def run(quick: bool) -> Result:
    pages, rounds = (128, 3) if quick else (512, 7)
    result = Result(sizes={"page_bytes": PAGE, "pages": pages, "rounds": rounds, "batch": BATCH})
    for place, folder in PLACES.items():
        _throughput(result, place, folder, PAGE, pages, rounds)
        # Small pages, for the cost of an entry; no bar.
        _throughput(result, f"{place}_64k", folder, SMALL, pages, rounds)
        _latency(result, place, folder, 200 if quick else 2000)
    for place in PLACES:
        for way in ("write", "read"):
            ratio = result.figures[f"{place}_{way}_ratio"]
            assert isinstance(ratio, Figure)
            result.bars[f"{place}_{way}_of_copy"] = Bar(ratio.median, at_least=BAR)
    return result


class Pages:
    """Pages in memory to write from, and as many to read into."""

    def __init__(self, size: int, count: int) -> None:
        rng = np.random.default_rng(0)
        self.source = rng.integers(0, 256, size * count, dtype=np.uint8)
        self.target = np.zeros_like(self.source)
        self.keys = [rng.bytes(32) for _ in range(count)]
        self.size, self.count = size, count

    def views(self, of: np.ndarray) -> list[Views]:
        """K takes three fifths of a page, V the rest, as in the model family."""
        flat, cut = of.data, self.size * 3 // 5
        starts = range(0, len(of), self.size)
        return [[flat[at : at + cut], flat[at + cut : at + self.size]] for at in starts]


def _throughput(result: Result, name: str, folder: str, size: int, count: int, rounds: int) -> None:
    pages = Pages(size, count)
    source, target = pages.views(pages.source), pages.views(pages.target)
    seconds: dict[str, list[float]] = {}
    for turn in range(rounds):
        sides = [_store_side, _copy_side]
        for side in sides if turn % 2 else sides[::-1]:
            with tempfile.TemporaryDirectory(dir=folder) as room:
                for way, took in side(Path(room), pages, source, target):
                    seconds.setdefault(way, []).append(took)
            if not np.array_equal(pages.source, pages.target):
                raise RuntimeError(f"{name}: what was read is not what was written")
            pages.target[:] = 0
    total = size * count / 1e9
    for way in ("write", "read"):
        store, copy = seconds[f"store_{way}"], seconds[f"copy_{way}"]
        result.figures[f"{name}_{way}_gb_s"] = Figure.of([total / s for s in store])
        result.figures[f"{name}_{way}_copy_gb_s"] = Figure.of([total / s for s in copy])
        result.figures[f"{name}_{way}_ratio"] = Figure.of(
            [c / s for s, c in zip(store, copy, strict=True)]
        )


def _store_side(
    room: Path, pages: Pages, source: Sequence[Views], target: Sequence[Views]
) -> Iterator[tuple[str, float]]:
    with _tier(room, 8 * pages.source.nbytes) as tier:
        entries = list(zip(pages.keys, source, strict=True))
        began = time.perf_counter()
        for at in range(0, pages.count, BATCH):
            if not all(tier.put(entries[at : at + BATCH])):
                raise RuntimeError(f"pages were not stored: {tier.stats()}")
        yield "store_write", time.perf_counter() - began
        began = time.perf_counter()
        for at in range(0, pages.count, BATCH):
            if not all(tier.get(pages.keys[at : at + BATCH], target[at : at + BATCH])):
                raise RuntimeError(f"pages were not found: {tier.stats()}")
        yield "store_read", time.perf_counter() - began


def _copy_side(
    room: Path, pages: Pages, source: Sequence[Views], target: Sequence[Views]
) -> Iterator[tuple[str, float]]:
    file = os.open(room / "copy", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        began = time.perf_counter()
        for i, views in enumerate(source):
            os.pwritev(file, views, i * pages.size)
        yield "copy_write", time.perf_counter() - began
        began = time.perf_counter()
        for i, views in enumerate(target):
            os.preadv(file, views, i * pages.size)
        yield "copy_read", time.perf_counter() - began
    finally:
        os.close(file)


def _latency(result: Result, place: str, folder: str, reads: int) -> None:
    pages = Pages(PAGE, 64)
    took = []
    with tempfile.TemporaryDirectory(dir=folder) as room, _tier(Path(room), 2**30) as tier:
        tier.put(list(zip(pages.keys, pages.views(pages.source), strict=True)))
        target = pages.views(pages.target)
        for i in range(reads):
            at = i * 37 % pages.count
            began = time.perf_counter()
            found = tier.find([pages.keys[at]]) and tier.get([pages.keys[at]], [target[at]])
            took.append(1e3 * (time.perf_counter() - began))
            if found != [True]:
                raise RuntimeError("a page was not found")
    took.sort()
    result.figures[f"{place}_page_p50_ms"] = round(took[len(took) // 2], 4)
    result.figures[f"{place}_page_p99_ms"] = round(took[len(took) * 99 // 100], 4)


@contextmanager
def _tier(room: Path, budget: int) -> Iterator[Tier]:
    tier = Tier(room, budget, timeout_s=60.0)
    # Opening makes the index.
    tier.flush()
    try:
        yield tier
    finally:
        tier.close()
