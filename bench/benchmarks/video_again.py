"""A second question about the same hour (quick: three minutes): time to rows against the first one.

Through the application's own path without Ray and HTTP. `again`: the clip is found whole, by its
digest. `parts`: it is not, its parts are found one by one and put together (what a question about
the same file with other sound or layout options costs). Nothing may be decoded for either.
"""

from __future__ import annotations

import asyncio
import time

from bench.result import Bar, Figure, Result
from bench.video_clips import clip
from bench.video_rows import Rows

FULL, QUICK = 3600, 180
AGAIN = 5


def run(quick: bool) -> Result:
    return asyncio.run(_measure(QUICK if quick else FULL))


async def _measure(seconds: int) -> Result:
    data = clip(seconds).read_bytes()
    rows = Rows(workers=2)
    await rows.ready()
    began = time.perf_counter()
    first = await rows.ask(data)
    first_s = time.perf_counter() - began
    decoded = len(rows.video.decoded)
    again, parts = [], []
    for _ in range(AGAIN):
        began = time.perf_counter()
        found = await rows.ask(data)
        again.append(time.perf_counter() - began)
        if found.rows != first.rows:
            raise RuntimeError("the second question got other rows")
        rows.forget(first.digest)
        began = time.perf_counter()
        await rows.ask(data)
        parts.append(time.perf_counter() - began)
    more = len(rows.video.decoded) - decoded
    await rows.close()
    shares = {"again": Figure.of(again), "parts": Figure.of(parts)}
    return Result(
        {"seconds": seconds, "bytes": len(data), "parts": decoded},
        {"first_s": first_s, **{f"{name}_s": figure for name, figure in shares.items()}},
        {
            "again_share": Bar(shares["again"].median / first_s, at_most=0.02),
            "parts_decoded_again": Bar(more, at_most=0),
        },
    )
