"""Seconds to read a 10-minute clip at 1 frame per second, ours against PyAV, decord, torchcodec.

720p H.264 (`bench.video_clips`), scaled to the size that the shipped settings hand to the tower.
Every peer is a process of its own (`bench.video_peers`); after the first round only PyAV and the
best of the others go on. `--quick` takes one minute of the clip.
"""

from __future__ import annotations

import asyncio

from bench.result import Result
from bench.video_against import race
from bench.video_clips import HEIGHT, RATE, WIDTH, clip
from bench.video_ours import shipped_size
from video.sampling import SamplingOptions, choose


def run(quick: bool) -> Result:
    seconds, rounds = (60, 2) if quick else (600, 3)
    numbers = choose(seconds * RATE, RATE, SamplingOptions()).tolist()
    size = shipped_size()(len(numbers), HEIGHT, WIDTH)
    found = asyncio.run(race(clip(seconds), numbers, {"fps": 1.0}, size, rounds=rounds))
    return Result(
        {
            "seconds": seconds,
            "frames": len(numbers),
            "size": list(size),
            "rounds": rounds,
            "not_installed": found.missing,
        },
        found.figures,
        found.bars(sequential=1.7, others=1.5),
    )
