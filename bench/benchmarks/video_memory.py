"""Peak memory over the replica's base while a 1-minute and a 1-hour clip are decoded at 1 fps.

Replica and worker processes together; the parts are dropped as they come. Left out are the file's
own bytes, which are held once and mapped by all. `--quick` takes ten minutes instead of the hour.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from bench.memory import PeakMemory
from bench.result import Bar, Figure, Result
from bench.video_clips import clip
from bench.video_ours import Ours, shipped_size, view
from video.shared import FILE

SHORT = 60


def run(quick: bool) -> Result:
    long, rounds = (600, 1) if quick else (3600, 1)
    peaks: dict[int, list[float]] = {SHORT: [], long: []}
    bases: list[float] = []
    for _ in range(rounds):
        for seconds in peaks:
            base, peak = _in_new_process(seconds)
            bases.append(base / 2**20)
            peaks[seconds].append((peak - base) / 2**20)
    figures: dict[str, Figure | float] = {
        f"{seconds}_s_mib": Figure.of(found) for seconds, found in peaks.items()
    }
    figures["base_mib"] = Figure.of(bases)
    ratio = Figure.of(peaks[long]).median / Figure.of(peaks[SHORT]).median
    return Result({"seconds": [SHORT, long]}, figures, {"ratio": Bar(ratio, at_most=1.2)})


def _in_new_process(seconds: int) -> tuple[int, int]:
    """(base, peak) in bytes of a replica that decodes one clip."""
    clip(seconds)
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(seconds)],
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    base, peak = json.loads(done.stdout.splitlines()[-1])
    return base, peak


async def _side(seconds: int) -> tuple[int, int]:
    path = clip(seconds)
    data = view(path)
    async with Ours(shipped_size()) as ours:
        with PeakMemory(lambda name: FILE in name or path.name in name) as memory:
            await ours.stream(data, {"fps": 1.0})
    return memory.base, memory.peak


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_side(int(sys.argv[1])))))
