"""The number type of a training step: whichever this processor multiplies faster.

With AVX-512 bf16 some processors multiply bfloat16 faster than float32, others only half as fast.
"""

from __future__ import annotations

import time
from functools import cache

import torch

ROWS, INNER, COLUMNS = 2048, 192, 640  # of a projection in the trunk
ROUNDS = 10


@cache
def step_type() -> torch.dtype:
    """``torch.bfloat16`` or ``torch.float32``, timed once for each process."""
    seconds = {dtype: _seconds(dtype) for dtype in (torch.bfloat16, torch.float32)}
    return min(seconds, key=lambda dtype: seconds[dtype])


def autocast() -> torch.autocast:
    """Autocast to ``step_type``; with float32 it does nothing."""
    wide = step_type() == torch.float32
    return torch.autocast("cpu", torch.bfloat16, enabled=not wide)


def _seconds(dtype: torch.dtype) -> float:
    """The fastest of some products, which other programs disturb least."""
    a, b = torch.ones(ROWS, INNER, dtype=dtype), torch.ones(COLUMNS, INNER, dtype=dtype)
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        torch.mm(a, b.T)
        found.append(time.perf_counter() - start)
    return min(found)
