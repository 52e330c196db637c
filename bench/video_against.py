"""Frames of one clip, ours against every peer that is installed, in rounds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.result import Bar, Figure
from bench.video_ours import Ours, view
from bench.video_peers import NAMES, Peer, installed

SEQUENTIAL = ("pyav_auto", "pyav_default")


@dataclass
class Race:
    """Seconds by side; `missing` names the peers that are not installed."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Figure | float]:
        return {f"{name}_s": Figure.of(found) for name, found in self.seconds.items()}

    def best(self, names: Sequence[str]) -> str:
        return min(names, key=lambda name: Figure.of(self.seconds[name]).median)

    @property
    def others(self) -> list[str]:
        return [name for name in self.seconds if name not in (*SEQUENTIAL, "ours")]

    def ahead_of(self, name: str) -> float:
        """How many times longer `name` takes."""
        return Figure.of(self.seconds[name]).median / Figure.of(self.seconds["ours"]).median

    def bars(self, sequential: float, others: float) -> dict[str, Bar]:
        found = {"over_pyav_auto": Bar(self.ahead_of("pyav_auto"), at_least=sequential)}
        if self.others:
            ahead = self.ahead_of(self.best(self.others))
            found["over_best_other"] = Bar(ahead, at_least=others)
        return found


async def race(
    path: Path,
    numbers: Sequence[int],
    sampling: Mapping[str, object],
    size: tuple[int, int],
    *,
    rounds: int,
    once: Sequence[str] = (),
) -> Race:
    """Everybody reads frames `numbers`, which are those that `sampling` chooses, in `size`.

    All take part in the first round; in later ones only ours, PyAV and the best of the others, and
    none of `once`. Raises RuntimeError when the sides do not give the same number of frames.
    """
    found = Race(missing=[name for name in NAMES if not installed(name)])
    names = [name for name in NAMES if name not in found.missing]
    data = view(path)
    async with Ours.of_size(size) as ours:
        for number in range(rounds):
            began = time.perf_counter()
            frames = await ours.frames(data, sampling)
            found.seconds.setdefault("ours", []).append(time.perf_counter() - began)
            if frames.shape != (len(numbers), *size, 3):
                raise RuntimeError(
                    f"ours gives {frames.shape}, {len(numbers)} frames are asked for"
                )
            if number == 1:
                best = [found.best(found.others)] if found.others else []
                names = [n for n in ("pyav_auto", *best) if n not in once]
            for name in names:
                peer = Peer(name, path, size)
                found.seconds.setdefault(name, []).append(peer.seconds(numbers))
                peer.close()
    return found
