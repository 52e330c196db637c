"""Seconds to read 32 frames of a 1-hour clip, ours against PyAV, decord and torchcodec.

As `video_decode`. PyAV decodes the whole hour; it does so once, the others go on for three rounds.
`--quick` takes ten minutes of the clip.
"""

from __future__ import annotations

import asyncio

from bench.result import Result
from bench.video_against import race
from bench.video_clips import HEIGHT, RATE, WIDTH, clip
from bench.video_ours import shipped_size
from video.sampling import SamplingOptions, choose

FRAMES = 32


def run(quick: bool) -> Result:
    seconds, rounds = (600, 2) if quick else (3600, 3)
    numbers = choose(seconds * RATE, RATE, SamplingOptions(num_frames=FRAMES)).tolist()
    size = shipped_size()(FRAMES, HEIGHT, WIDTH)
    found = asyncio.run(
        race(
            clip(seconds),
            numbers,
            {"num_frames": FRAMES},
            size,
            rounds=rounds,
            once=("pyav_auto",),
        )
    )
    return Result(
        {
            "seconds": seconds,
            "frames": FRAMES,
            "size": list(size),
            "rounds": rounds,
            "not_installed": found.missing,
        },
        found.figures,
        found.bars(sequential=20.0, others=1.5),
    )
