"""A 1-hour clip at 1 fps over 1, 2, 4 and 8 decoders: 1 and 2 measured, all predicted from costs.

A decoder is one process with one thread. The prediction (`bench.video_simulator`) takes the costs
of the parts as one decoder had them; where it can be measured it must be right within 10 %.
`--quick` measures ten minutes and predicts for the hour, the parts of the ten minutes six times
and the plan of the hour.
"""

from __future__ import annotations

import asyncio

from bench.result import Bar, Figure, Result
from bench.video_clips import clip
from bench.video_ours import Costs, Ours, opening, shipped_size, view
from bench.video_simulator import efficiency, makespan

MEASURED = (1, 2)
DECODERS = (1, 2, 4, 8)
HOUR = 3600
SAMPLING = {"fps": 1.0}


def run(quick: bool) -> Result:
    return asyncio.run(_run(600 if quick else HOUR))


async def _run(seconds: int) -> Result:
    data, whole = view(clip(seconds)), view(clip(HOUR))
    planning = 0.0
    costs: dict[int, Costs] = {}
    for decoders in MEASURED:
        options = {"workers": decoders, "threads": 1}
        async with Ours(shipped_size(), in_work=decoders, **options) as ours:
            costs[decoders] = await ours.stream(data, SAMPLING)
            if decoders == 1:
                planning = await ours.planning(whole, SAMPLING)
    first, first_of_hour = opening(data), opening(whole)
    alone = costs[1]
    bars = {}
    figures: dict[str, Figure | float] = {
        "plan_s": alone.plan,
        "hour_plan_s": planning,
        "opening_s": first,
        "part_s": Figure.of(alone.parts),
    }
    for decoders in MEASURED:
        predicted = makespan(alone.plan, first, alone.parts, decoders)
        figures[f"measured_{decoders}_s"] = costs[decoders].total
        figures[f"predicted_{decoders}_s"] = predicted
        off = abs(predicted / costs[decoders].total - 1)
        bars[f"prediction_of_{decoders}"] = Bar(off, at_most=0.1)
    hour = planning, first_of_hour, alone.parts * (HOUR // seconds)
    for decoders in DECODERS:
        figures[f"hour_on_{decoders}_s"] = makespan(*hour, decoders)
        figures[f"efficiency_at_{decoders}"] = efficiency(*hour, decoders)
    bars["efficiency_at_8"] = Bar(efficiency(*hour, DECODERS[-1]), at_least=0.85)
    return Result({"seconds": seconds, "parts": len(alone.parts)}, figures, bars)
