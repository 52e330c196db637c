"""Images and sounds per second of 16 clients: batched across requests against one per pass.

Both sides are replicas of the same checkpoint with the same threads; they differ in the number of
items that a forward pass may hold. Clients are a closed loop (each sends its next item when it has
the last one's rows); rounds alternate between the sides. Every item is new and the cache is off.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.encoders import audio_encoder, image_encoder, jpeg, sound
from bench.result import Bar, Figure, Result

CLIENTS = 16
VARIANTS = 8

Send = Callable[[int], Awaitable[Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of item: how many of them make a round, and whether they are small."""

    name: str
    items: int
    small: bool


KINDS = (
    Kind("thumbnail", 48, True),  # 64 x 64
    Kind("large_image", 16, False),  # 384 x 384
    Kind("short_sound", 48, True),  # 0.5 s
    Kind("long_sound", 16, False),  # 10 s
)


@dataclass
class Side:
    per_second: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)


def run(quick: bool) -> Result:
    return asyncio.run(_run(2 if quick else 9))


async def _run(rounds: int) -> Result:
    result = Result(
        {"clients": CLIENTS, "rounds": rounds, "items": {k.name: k.items for k in KINDS}}
    )
    for kind in KINDS:
        # Rounds of small items are short, so that more of them are needed against noise.
        batched, single = await _compare(kind, rounds * 3 if kind.small else rounds)
        for name, side in (("batched", batched), ("single", single)):
            result.figures[f"{kind.name}_{name}_per_s"] = Figure.of(side.per_second)
            result.figures[f"{kind.name}_{name}_p50_ms"] = Figure.of(side.p50_ms)
        gain = statistics.median(batched.per_second) / statistics.median(single.per_second)
        result.bars[f"{kind.name}_throughput"] = Bar(gain, at_least=2.0 if kind.small else 0.95)
        if kind.small:
            latency = statistics.median(batched.p50_ms) / statistics.median(single.p50_ms)
            result.bars[f"{kind.name}_p50"] = Bar(latency, at_most=1.0)
    return result


async def _compare(kind: Kind, rounds: int) -> tuple[Side, Side]:
    image = kind.name in ("thumbnail", "large_image")
    make: Callable[..., Any] = image_encoder if image else audio_encoder
    encoders = [make(cache_bytes=0), make(cache_bytes=0, max_batch_items=1)]
    sends = [_sender(kind, encoder) for encoder in encoders]
    sides = (Side(), Side())
    for index in range(-1, rounds):
        for number, (send, side) in enumerate(zip(sends, sides, strict=True)):
            seconds, latencies = await _round(send, kind.items)
            if index >= 0:
                side.per_second.append(kind.items / seconds)
                side.p50_ms.append(statistics.median(latencies) * 1e3)
            elif number == 1:
                assert (await encoders[1].stats())["mean_batch_size"] == 1
    for encoder in encoders:
        await encoder.close()
    return sides


def _sender(kind: Kind, encoder: Any) -> Send:
    """Encodes item `index`: VARIANTS different contents, a digest of its own for every call."""
    calls = iter(range(10**9))
    if kind.name in ("thumbnail", "large_image"):
        side = 64 if kind.small else 384
        images = [jpeg(side, side, seed) for seed in range(VARIANTS)]
        return lambda i: encoder.encode_image(images[i % VARIANTS], f"{next(calls):064x}")
    sounds = [sound(0.5 if kind.small else 10.0, seed=seed) for seed in range(VARIANTS)]
    return lambda i: encoder.encode_samples(sounds[i % VARIANTS], 24_000, f"{next(calls):064x}")


async def _round(send: Send, items: int) -> tuple[float, list[float]]:
    """Seconds for all items, and the latency of each."""
    latencies: list[float] = []
    todo = iter(range(items))

    async def client() -> None:
        for index in todo:
            start = time.perf_counter()
            await send(index)
            latencies.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - start, latencies
