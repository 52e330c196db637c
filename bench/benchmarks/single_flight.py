"""Time of 32 concurrent identical images against one, and the forward passes they take.

The cache is off, so that only the flight in progress is shared; rounds alternate between both.
"""

from __future__ import annotations

import asyncio
import time

from bench.encoders import image_encoder, jpeg
from bench.result import Bar, Figure, Result

CALLERS = 32
SIDE = 512


def run(quick: bool) -> Result:
    return asyncio.run(_run(8 if quick else 40))


async def _run(rounds: int) -> Result:
    encoder = image_encoder(cache_bytes=0)
    data = jpeg(SIDE, SIDE)
    times: dict[int, list[float]] = {1: [], CALLERS: []}
    passes: dict[int, list[int]] = {1: [], CALLERS: []}
    for index in range(-1, rounds):
        for callers in times:
            digest = f"{index + 1:032x}{callers:032x}"
            before = (await encoder.stats())["batches"]
            start = time.perf_counter()
            await asyncio.gather(*(encoder.encode_image(data, digest) for _ in range(callers)))
            seconds = time.perf_counter() - start
            if index >= 0:
                times[callers].append(seconds * 1e3)
                passes[callers].append((await encoder.stats())["batches"] - before)
    await encoder.check()
    await encoder.close()
    one, many = Figure.of(times[1]), Figure.of(times[CALLERS])
    return Result(
        {"callers": CALLERS, "image": [SIDE, SIDE], "rounds": rounds},
        {"one_ms": one, "many_ms": many, "many_passes": Figure.of(passes[CALLERS])},
        {
            "time_ratio": Bar(many.median / one.median, at_most=1.2),
            "forward_passes": Bar(max(passes[CALLERS]), at_most=1),
        },
    )
