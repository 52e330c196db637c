"""Sizes of the two KV pools from one memory budget.

A sequence of L tokens holds L slots of the full pool and, once it has moved on, only its last
window of the SWA pool: KV(L) = F * L + S * min(L, W) bytes, F and S being a token's bytes over
all full and all SWA layers. Beside the windows the SWA pool must hold what requests have not given
back yet (the engine frees outgrown slots in steps) and the prefill chunk in progress; an engine
whose SWA pool is too small for both stalls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}


class PoolError(ValueError):
    """Pools that cannot work; the message has the arithmetic."""


@dataclass(frozen=True)
class KvGeometry:
    """A token's KV bytes on one device: ``full_bytes`` over the full layers, ``swa_bytes`` over
    the SWA layers, draft layers among them; ``window`` keys to the left of a query and itself."""

    full_bytes: int
    swa_bytes: int
    window: int

    def sequence_bytes(self, tokens: int) -> int:
        """KV(L): what a sequence of ``tokens`` needs."""
        return self.full_bytes * tokens + self.swa_bytes * min(tokens, self.window)


@dataclass(frozen=True)
class PoolDemand:
    """What the pools are for. ``typical_tokens``: length of a usual conversation, prompt and
    answer; ``interval``: tokens after which outgrown SWA slots are freed."""

    running: int
    chunk: int
    page: int
    draft_tokens: int
    interval: int
    typical_tokens: int

    def request_slots(self, window: int) -> int:
        """SWA slots of one running request at worst: its window, what has not been freed yet, page
        rounding, and the tokens of the step in progress (SGLang's own worst case)."""
        step = self.page if self.draft_tokens == 1 else 2 * (self.draft_tokens + self.page)
        return window + self.interval * self.draft_tokens + self.page + step

    def running_slots(self, window: int) -> int:
        """SWA slots that all running requests and the chunk in progress hold at worst."""
        return self.running * self.request_slots(window) + self.chunk + self.page

    def tail_slots(self, window: int) -> int:
        """SWA slots of a conversation that waits in the prefix tree: the windows at the end of the
        prompt, where another may branch off, and at the end of the answer."""
        return 2 * (window + self.page)


@dataclass(frozen=True)
class Pools:
    """Tokens of both pools, and how many typical conversations they hold, running ones included."""

    full_tokens: int
    swa_tokens: int
    bytes: int
    conversations: int

    @property
    def ratio(self) -> float:
        """``swa_full_tokens_ratio``, of which the engine makes ``int(full * ratio)`` slots."""
        return min(1.0, (self.swa_tokens + 0.5) / self.full_tokens)

    def report(self) -> dict[str, int]:
        return asdict(self)


def geometry(
    config: Mapping[str, Any], kv_dtype: str, tensor_parallel: int = 1, draft_layers: int = 0
) -> KvGeometry:
    """KV geometry of a checkpoint's ``config.json``.

    ``kv_dtype`` is a key of DTYPE_BYTES. Heads are spread over ``tensor_parallel`` devices, at
    least one on each.
    """
    size = DTYPE_BYTES[kv_dtype]
    pattern: list[int] = config["hybrid_layer_pattern"]

    def layer(prefix: str) -> int:
        def value(name: str) -> int:
            return int(config.get(f"{prefix}{name}", config[name]))

        heads = max(1, value("num_key_value_heads") // tensor_parallel)
        return heads * (value("head_dim") + value("v_head_dim")) * size

    sliding = sum(pattern)
    return KvGeometry(
        full_bytes=(len(pattern) - sliding) * layer(""),
        swa_bytes=(sliding + draft_layers) * layer("swa_"),
        window=int(config["sliding_window"]) + 1,
    )


def plan(budget: int, kv: KvGeometry, demand: PoolDemand) -> Pools:
    """The pools that hold the most typical conversations in ``budget`` bytes.

    n conversations, running or waiting, take n * typical full slots and n tails; the running ones
    take their worst case on top, and the SWA pool up to a page less one slot:
    n = (budget - S * (running_slots + page - 1)) / (F * typical + S * tail).
    Raises PoolError where the budget cannot hold every running request at typical length.
    """
    page = demand.page
    typical = -(-demand.typical_tokens // page) * page
    tail, live = demand.tail_slots(kv.window), demand.running_slots(kv.window)
    each = kv.full_bytes * typical + kv.swa_bytes * tail
    # Running requests have their windows in ``live`` already; the SWA pool ends in a whole page.
    fixed = kv.swa_bytes * (live - demand.running * tail + page - 1)
    n = (budget - fixed) // each
    if n < demand.running:
        raise PoolError(
            f"{budget} bytes of KV hold {max(0, n)} conversations of {typical} tokens, and "
            f"{demand.running} shall run at once: {kv.full_bytes} bytes * {typical} tokens each, "
            f"and {kv.swa_bytes} bytes * {live} SWA slots, in pages of {page}, for their windows "
            f"and a chunk of {demand.chunk}, make {demand.running * each + fixed}"
        )
    full = n * typical
    swa = (n - demand.running) * tail + live
    swa = -(-swa // page) * page
    if swa > full:  # conversations shorter than their windows: as many slots in both pools
        full = swa = budget // (kv.full_bytes + kv.swa_bytes) // page * page
    else:
        full = (budget - swa * kv.swa_bytes) // kv.full_bytes // page * page
    return Pools(full, swa, full * kv.full_bytes + swa * kv.swa_bytes, int(n))


def check_pools(full_tokens: int, swa_tokens: int, kv: KvGeometry, demand: PoolDemand) -> None:
    """Refuse an SWA pool that the running requests and a chunk could exhaust. Raises PoolError."""
    needed = demand.running_slots(kv.window)
    if swa_tokens < min(needed, full_tokens):
        raise PoolError(
            f"an SWA pool of {swa_tokens} tokens; it must be at least {needed}: "
            f"{demand.running} running requests * {demand.request_slots(kv.window)} (window "
            f"{kv.window}, {demand.interval} tokens between frees * {demand.draft_tokens} per "
            f"step, page {demand.page}, tokens of a step) + a chunk of {demand.chunk} + a page"
        )
