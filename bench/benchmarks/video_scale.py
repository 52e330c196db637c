"""A 1-hour clip at 1 fps over 1, 2, 4 and 8 decoders: 1 and 2 measured, all predicted from costs.

A decoder is one process with one thread. The prediction (`bench.video_simulator`) takes the costs
of the parts as one decoder had them; where it can be measured it must be right within 10 %.
`--quick` measures ten minutes and predicts for the hour, the same ten minutes six times.
"""

from __future__ import annotations

import asyncio
import time

from bench.result import Bar, Figure, Result
from bench.video_clips import clip
from bench.video_ours import Costs, Ours, shipped_size, view
from bench.video_simulator import efficiency, makespan
from video.head import open_video
from video.probe import probe
from video.source import Source

MEASURED = (1, 2)
DECODERS = (1, 2, 4, 8)
HOUR = 3600


def run(quick: bool) -> Result:
    return asyncio.run(_run(600 if quick else HOUR))


async def _run(seconds: int) -> Result:
    data = view(clip(seconds))
    costs: dict[int, Costs] = {}
    for decoders in MEASURED:
        options = {"workers": decoders, "threads": 1}
        async with Ours(shipped_size(), in_work=decoders, **options) as ours:
            costs[decoders] = await ours.stream(data, {"fps": 1.0})
    opening = _opening(data)
    alone = costs[1]
    bars = {}
    figures: dict[str, Figure | float] = {
        "plan_s": alone.plan,
        "opening_s": opening,
        "part_s": Figure.of(alone.parts),
    }
    for decoders in MEASURED:
        predicted = makespan(alone.plan, opening, alone.parts, decoders)
        figures[f"measured_{decoders}_s"] = costs[decoders].total
        figures[f"predicted_{decoders}_s"] = predicted
        off = abs(predicted / costs[decoders].total - 1)
        bars[f"prediction_of_{decoders}"] = Bar(off, at_most=0.1)
    hour = alone.parts * (HOUR // seconds)
    for decoders in DECODERS:
        figures[f"hour_on_{decoders}_s"] = makespan(alone.plan, opening, hour, decoders)
        figures[f"efficiency_at_{decoders}"] = efficiency(alone.plan, opening, hour, decoders)
    bars["efficiency_at_8"] = Bar(
        efficiency(alone.plan, opening, hour, DECODERS[-1]), at_least=0.85
    )
    return Result({"seconds": seconds, "parts": len(alone.parts)}, figures, bars)


def _opening(data: memoryview) -> float:
    """What a decoder does before its first part of a file."""
    began = time.perf_counter()
    source = Source(data)
    open_video(source, probe(source))
    return time.perf_counter() - began
