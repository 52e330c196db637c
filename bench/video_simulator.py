"""How long a clip takes on more decoders than this machine has cores, from measured costs.

The model: one decoder plans the clip; then each decoder takes the next part as soon as it is free,
in the order of time; a decoder that has not seen the file opens it first. Decoders do not disturb
each other. Whether that holds is for the caller to check where it can be measured.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def makespan(plan: float, opening: float, parts: Sequence[float], decoders: int) -> float:
    """Seconds until the last part is done. Raises ValueError without a decoder."""
    if decoders < 1:
        raise ValueError("at least one decoder is needed")
    free = [(plan, False)] + [(plan, True)] * (decoders - 1)  # (free at, has to open the file)
    heapq.heapify(free)
    end = plan
    for cost in parts:
        at, opens = heapq.heappop(free)
        at += cost + (opening if opens else 0.0)
        heapq.heappush(free, (at, False))
        end = max(end, at)
    return end


def efficiency(plan: float, opening: float, parts: Sequence[float], decoders: int) -> float:
    """Share of the decoders' time that one decoder alone would also need."""
    alone = makespan(plan, opening, parts, 1)
    return alone / (decoders * makespan(plan, opening, parts, decoders))
