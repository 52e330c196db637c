"""A one-hour clip (quick: three minutes) from bytes to embedding rows: ours against the plain way.

Ours is the application's own path without Ray and HTTP (`bench.video_rows`). The plain way is what
one writes first: PyAV decodes frame after frame as it comes, Pillow resizes the wanted ones, the
same tower takes one pair of frames at a time. Both take the same frames. `plain_auto` (quick only)
lets PyAV use threads as it likes. The gain on eight cores is predicted from the costs of the parts;
for two cores the same prediction stands beside the measurement. Frames of the quick run have the
size that those of the hour have. torch has the threads that the settings give a replica, and its
own number of them in the plain way.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import av
import numpy as np
import torch
from PIL import Image

from app.settings import config_path, load_settings
from bench.result import Bar, Figure, Result
from bench.video_clips import clip
from bench.video_ours import Ours, opening, view
from bench.video_rows import Rows
from bench.video_simulator import makespan
from encoders.digest import content_digest, media_digest
from encoders.embedding import RowsArray
from encoders.vision.runtime import PixelLimits
from video.clip import Clip
from video.sampling import SamplingOptions, choose

CORES, MANY = 2, 8
FULL, QUICK = 3600, 180
# A longer clip repeats the costs of its first seconds, as it repeats its packets.
COSTS = 600
SAMPLING = {"fps": 1.0}
REPLICA_THREADS = load_settings(config_path(None)).local.threads
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
    threads = torch.get_num_threads()
    likeness = 0.0
    for _ in range(rounds):
        rows = Rows(seconds / FULL, workers=CORES)
        await rows.ready()
        torch.set_num_threads(REPLICA_THREADS)
        began = time.perf_counter()
        ours = await rows.ask(data)
        readings["ours"].append(time.perf_counter() - began)
        torch.set_num_threads(threads)
        for name in readings.keys() - {"ours"}:
            began = time.perf_counter()
            plain = await asyncio.to_thread(_plain, path, rows, THREADS[name])
            readings[name].append(time.perf_counter() - began)
        likeness = _likeness(await rows.array(ours), plain)
        await rows.close()
    del data
    torch.set_num_threads(REPLICA_THREADS)
    hour = await _predicted(seconds)
    found = {name: Figure.of(values) for name, values in readings.items()}
    gains = {
        name: Figure.of([p / o for p, o in zip(values, readings["ours"], strict=True)])
        for name, values in readings.items()
        if name != "ours"
    }
    many = found["plain"].median * FULL / seconds / hour[MANY]
    return Result(
        {"seconds": seconds, "rounds": rounds, "workers": CORES},
        {
            **{f"{name}_s": figure for name, figure in found.items()},
            **{f"gain_over_{name}": figure for name, figure in gains.items()},
            **{f"hour_predicted_on_{cores}_s": took for cores, took in hour.items()},
            "cosine_of_rows": likeness,
        },
        {
            "gain": Bar(gains["plain"].median, at_least=2.5),
            f"gain_on_{MANY}": Bar(many, at_least=6.8),
        },
    )


async def _predicted(seconds: int) -> dict[int, float]:
    """Seconds that the hour takes, by number of cores, by the model of `bench.video_simulator`.

    Everything is measured with nothing beside it. First come the digest and the plan of the whole
    hour. A part costs a core what one decoder takes for it and what the encoder takes for its
    frames; the one thread that encodes has all parts to do after the first was decoded.
    """
    whole, measured = view(clip(FULL)), min(seconds, COSTS)
    parts: dict[int, Clip] = {}
    rows = Rows(seconds / FULL)
    began = time.perf_counter()
    media_digest("video", whole, {}, "")
    before = time.perf_counter() - began
    async with Ours(rows.size_of, in_work=1, workers=1, threads=1) as alone:
        before += await alone.planning(whole, SAMPLING)
        costs = await alone.stream(view(clip(measured)), SAMPLING, parts.__setitem__)
    encodes = []
    for first, part in sorted(parts.items()):
        began = time.perf_counter()
        options = {**rows.frame_pixels, "sampled_frames": measured}
        await rows.encoder.encode_part(part.frames, content_digest(first), options)
        encodes.append(time.perf_counter() - began)
    await rows.close()
    both = [cost + encode for cost, encode in zip(costs.parts, encodes, strict=True)]
    loops, open_first = FULL // measured, opening(whole)
    return {
        cores: max(
            makespan(before, open_first, both * loops, cores),
            before + costs.parts[0] + sum(encodes) * loops,
        )
        for cores in (CORES, MANY)
    }


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
