"""A one-hour clip (quick: three minutes) from bytes to embedding rows: ours against the plain way.

Ours is the application's own path without Ray and HTTP (`bench.video_rows`). The plain way is what
one writes first: PyAV decodes frame after frame as it comes, Pillow resizes the wanted ones, the
same tower takes one pair of frames at a time. Both take the same frames. `plain_auto` (quick only)
lets PyAV use threads as it likes. The gain on eight cores is predicted from the costs of the parts.
Frames of the quick run have the size that those of the hour have.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import av
import numpy as np
from PIL import Image

from app.frame_size import SizeOf
from bench.result import Bar, Figure, Result
from bench.video_clips import clip
from bench.video_ours import Ours, view
from bench.video_rows import Rows
from bench.video_simulator import makespan
from encoders.embedding import RowsArray
from encoders.vision.runtime import PixelLimits
from video.sampling import SamplingOptions, choose

CORES, MANY = 2, 8
FULL, QUICK = 3600, 180
# A longer clip repeats the costs of its first seconds, as it repeats its packets.
COSTS = 600
# PyAV's own default and its choice of threads.
THREADS = {"plain": "SLICE", "plain_auto": "AUTO"}


def run(quick: bool) -> Result:
    seconds = QUICK if quick else FULL
    return asyncio.run(_measure(clip(seconds), seconds, rounds=3 if quick else 1))


async def _measure(path: Path, seconds: int, rounds: int) -> Result:
    readings: dict[str, list[float]] = {"ours": [], "plain": []}
    if rounds > 1:
        readings["plain_auto"] = []
    data = await asyncio.to_thread(path.read_bytes)
    encoding = likeness = 0.0
    for _ in range(rounds):
        rows = Rows(seconds / FULL, workers=CORES)
        await rows.ready()
        began = time.perf_counter()
        ours = await rows.ask(data)
        readings["ours"].append(time.perf_counter() - began)
        encoding = rows.encoder._batcher.stats.forward_seconds + rows.encoder._workers.seconds
        for name in readings.keys() - {"ours"}:
            began = time.perf_counter()
            plain = await asyncio.to_thread(_plain, path, rows, THREADS[name])
            readings[name].append(time.perf_counter() - began)
        likeness = _likeness(await rows.array(ours), plain)
        await rows.close()
    found = {name: Figure.of(values) for name, values in readings.items()}
    predicted = await _predicted(seconds, encoding, rows.size_of)
    gains = {
        name: Figure.of([p / o for p, o in zip(values, readings["ours"], strict=True)])
        for name, values in readings.items()
        if name != "ours"
    }
    return Result(
        {"seconds": seconds, "rounds": rounds, "workers": CORES},
        {
            **{f"{name}_s": figure for name, figure in found.items()},
            **{f"gain_over_{name}": figure for name, figure in gains.items()},
            "encoding_s": encoding,
            f"hour_predicted_on_{MANY}_s": predicted,
            "cosine_of_rows": likeness,
        },
        {
            "gain": Bar(gains["plain"].median, at_least=2.5),
            f"gain_on_{MANY}": Bar(
                found["plain"].median * FULL / seconds / predicted, at_least=6.8
            ),
        },
    )


async def _predicted(seconds: int, encoding: float, size_of: SizeOf) -> float:
    """Seconds that the hour takes on `MANY` cores by the model of `bench.video_simulator`.

    A part costs what one decoder alone takes for it and its share of `encoding`, on one core; the
    one thread that encodes must have the time for all parts besides.
    """
    measured = min(seconds, COSTS)
    async with Ours(size_of, in_work=1, workers=1, threads=1) as alone:
        costs = await alone.stream(view(clip(measured)), {"fps": 1.0})
    parts = costs.parts * (FULL // measured)
    encoding *= FULL / seconds
    share = encoding / len(parts)
    spread = makespan(costs.plan, costs.plan, [cost + share for cost in parts], MANY)
    return max(spread, costs.plan + encoding)


def _plain(path: Path, rows: Rows, threads: str) -> RowsArray:
    runtime = rows.encoder._runtime
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = threads
        assert stream.average_rate is not None
        wanted = choose(stream.frames, float(stream.average_rate), SamplingOptions()).tolist()
        height, width = rows.size_of(len(wanted), stream.height, stream.width)
        found: list[RowsArray] = []
        pair: list[np.ndarray] = []
        places = iter(wanted)
        place = next(places)
        for number, frame in enumerate(container.decode(stream)):
            if number != place:
                continue
            picture = frame.to_image().resize((width, height), Image.Resampling.BILINEAR)
            pair.append(np.asarray(picture))
            if len(pair) == 2:
                limits = PixelLimits.parse({**rows.frame_pixels, "sampled_frames": len(wanted)})
                frames = np.stack(pair)
                plan = runtime.plan_clip(frames, limits)
                found += runtime.forward([runtime.prepare_frames(frames, plan)])
                pair.clear()
            place = next(places, -1)
            if place < 0:
                break
    return RowsArray.concat(found)


def _likeness(ours: RowsArray, plain: RowsArray) -> float:
    """Mean cosine between the rows of both; scaling differs, so they are not equal."""
    a, b = ours.tensor().double(), plain.tensor().double()
    if a.shape != b.shape:
        raise RuntimeError(f"ours gives {tuple(a.shape)} rows, the plain way {tuple(b.shape)}")
    cosine = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return float(cosine.mean())
