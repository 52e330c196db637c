"""Seconds to read a 1-hour clip by its key frames (an opt-in) against exact sampling at 1 fps.

Exact sampling is measured once, key frames three times. `--quick` takes ten minutes of the clip.
"""

from __future__ import annotations

import asyncio

from bench.result import Bar, Figure, Result
from bench.video_clips import clip
from bench.video_ours import Ours, shipped_size, view

ROUNDS = 3


def run(quick: bool) -> Result:
    return asyncio.run(_run(600 if quick else 3600))


async def _run(seconds: int) -> Result:
    data = view(clip(seconds))
    sides: dict[str, list[float]] = {"exact_s": [], "key_frames_s": []}
    frames: dict[str, int] = {}
    async with Ours(shipped_size()) as ours:
        for number in range(ROUNDS):
            for side in sides:
                if side == "exact_s" and number:
                    continue
                took, count = await _read(ours, data, side == "key_frames_s")
                sides[side].append(took)
                frames[side[:-2]] = count
    figures: dict[str, Figure | float] = {name: Figure.of(found) for name, found in sides.items()}
    gain = Figure.of(sides["exact_s"]).median / Figure.of(sides["key_frames_s"]).median
    return Result(
        {"seconds": seconds, "frames": frames}, figures, {"gain": Bar(gain, at_least=10.0)}
    )


async def _read(ours: Ours, data: memoryview, key_frames: bool) -> tuple[float, int]:
    """Seconds, and how many frames came."""
    counts: list[int] = []
    costs = await ours.stream(
        data,
        {"fps": 1.0, "key_frames": key_frames},
        lambda _, part: counts.append(len(part.frames)),
    )
    return costs.total, sum(counts)
