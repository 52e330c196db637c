"""A one-hour clip (quick: three minutes) from bytes to embedding rows: ours against the plain way.

Ours is the application's own path without Ray and HTTP (`bench.video_rows`). The plain way is what
one writes first: PyAV decodes frame after frame as it comes, Pillow resizes the wanted ones, the
same tower takes one pair of frames at a time. Both take the same frames. `plain_auto` lets PyAV use
threads as it likes (thread type AUTO).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import av
import numpy as np
from PIL import Image

from bench.result import Bar, Figure, Result
from bench.video_clips import clip
from bench.video_rows import Rows
from encoders.embedding import RowsArray
from encoders.vision.runtime import PixelLimits
from video.sampling import SamplingOptions, choose

CORES = 2
FULL, QUICK = 3600, 180


def run(quick: bool) -> Result:
    seconds = QUICK if quick else FULL
    return asyncio.run(_measure(clip(seconds), seconds, rounds=3 if quick else 1))


async def _measure(path: Path, seconds: int, rounds: int) -> Result:
    readings: dict[str, list[float]] = {"ours": [], "plain": [], "plain_auto": []}
    likeness = 0.0
    data = await asyncio.to_thread(path.read_bytes)
    for _ in range(rounds):
        rows = Rows(workers=CORES)
        await rows.ready()
        began = time.perf_counter()
        ours = await rows.ask(data)
        readings["ours"].append(time.perf_counter() - began)
        for name, threads in (("plain", "SLICE"), ("plain_auto", "AUTO")):
            began = time.perf_counter()
            plain = await asyncio.to_thread(_plain, path, rows, threads)
            readings[name].append(time.perf_counter() - began)
        likeness = _likeness(await rows.array(ours), plain)
        await rows.close()
    figures: dict[str, Figure | float] = {
        f"{name}_s": Figure.of(values) for name, values in readings.items()
    }
    figures["cosine_of_rows"] = likeness
    gain = [p / o for p, o in zip(readings["plain"], readings["ours"], strict=True)]
    auto = [p / o for p, o in zip(readings["plain_auto"], readings["ours"], strict=True)]
    figures["gain_over_plain"] = Figure.of(gain)
    figures["gain_over_plain_auto"] = Figure.of(auto)
    return Result(
        {"seconds": seconds, "rounds": rounds, "workers": CORES},
        figures,
        {"gain": Bar(Figure.of(gain).median, at_least=2.5)},
    )


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
