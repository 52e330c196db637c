"""A multimodal workload: arrivals and pictures from ServeGen, prefixes from Mooncake."""

from __future__ import annotations

import ast
import csv
import heapq
import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.replay import traces
from tools.replay.workload import Floats, Workload, merged, offsets_of

FOLDER = "servegen-mm-image"
# Different pictures, and the skew of how often each is asked for.
PICTURES, ZIPF = 20_000, 0.9
# An encoder's pictures per second (report, section 7: 30 after batching), for one of this size.
ENCODER_RATE, PICTURE_TOKENS = 30.0, 1200
# Pictures whose embeddings the encoders keep in all.
CACHED = 5000


@dataclass(frozen=True)
class Client:
    """``windows``: start, rate per second, distribution and its two parameters, of ten minutes
    each; histograms of tokens per picture, pictures, text and output tokens."""

    windows: list[tuple[float, float, str, float, float]]
    histograms: dict[str, tuple[np.ndarray, np.ndarray]]


def multimodal(
    count: int, seed: int, encoders: int = 8, folder: Path | None = None, hour: float = 14.0
) -> Workload:
    """``count`` requests from ServeGen's clients as of ``hour`` o'clock.

    Each takes over the prefix of a Mooncake conversation and ends with its pictures, whose
    identities are Zipf distributed; equal prefixes with equal pictures share blocks. ``ready`` is
    when ``encoders`` have encoded them, first come first served; a picture in their cache is free.
    """
    place = folder if folder is not None else traces.folder()
    clients = read_clients(place / FOLDER)
    texts = traces.mooncake("conversation", place / traces.MOONCAKE["conversation"])
    rng = np.random.default_rng(seed)
    arrivals = _arrivals(clients, count, hour * 3600, rng)
    weights = 1 / np.arange(1, PICTURES + 1) ** ZIPF
    weights /= weights.sum()
    size = texts.block_tokens
    ids: dict[tuple[int, int, int], int] = {}
    first_id = int(texts.blocks.max()) + 1
    rows: list[tuple[int, int, list[int], list[tuple[int, int]]]] = []
    for i, (_, client) in enumerate(arrivals):
        pick = clients[client].histograms
        source = i % len(texts)
        whole = int(texts.input_tokens[source]) // size
        path = texts.path(source)[:whole]
        pictures = [
            (int(rng.choice(PICTURES, p=weights)), max(1, _draw(pick["image_tokens"], rng)))
            for _ in range(_draw(pick["image_count"], rng))
        ]
        tokens = (
            whole * size + sum(n for _, n in pictures) + max(1, _draw(pick["text_tokens"], rng))
        )
        parent, picture = (path[-1] if path else -1), -1
        for k in range(-(-tokens // size) - whole):
            # The block belongs to the picture in its middle; text at the end is the request's own.
            picture = _at(pictures, (k + 0.5) * size, -2 - i)
            parent = ids.setdefault((parent, picture, k), first_id + len(ids))
            path.append(parent)
        rows.append((tokens, max(1, _draw(pick["output_tokens"], rng)), path, pictures))
    arrival = np.array([t for t, _ in arrivals])
    workload = Workload(
        "multimodal",
        size,
        arrival,
        _encoded(arrival, [r[3] for r in rows], encoders),
        np.array([r[0] for r in rows], np.int64),
        np.array([r[1] for r in rows], np.int64),
        offsets_of([len(r[2]) for r in rows]),
        np.array([b for r in rows for b in r[2]], np.int64),
        texts.session[np.arange(count) % len(texts)],
        (
            "arrivals and pictures: ServeGen mm-image (alibaba/ServeGen, Apache-2.0)",
            "prefixes: Mooncake FAST25 release (Apache-2.0), lengths not scaled",
            f"picture identities: Zipf({ZIPF}) of {PICTURES}, {encoders} encoders, seed {seed}",
        ),
    )
    # Sorts by when encoding is done.
    workload = merged(workload.name, [workload])
    workload.check()
    return workload


def read_clients(folder: Path) -> list[Client]:
    """Raises FileNotFoundError without any."""
    found = []
    for trace in sorted(folder.glob("chunk-*-trace.csv")):
        with trace.open(newline="") as file:
            rows = [r for r in csv.reader(file) if float(r[1]) > 0]
        data = json.loads(
            trace.with_name(trace.name.replace("trace.csv", "dataset.json")).read_text()
        )
        # The first of the day's parts stands for all of it.
        part = next(iter(data.values()))
        histograms = {
            name: _histogram(part[name])
            for name in ("image_tokens", "image_count", "text_tokens", "output_tokens")
        }
        windows = [(float(r[0]), float(r[1]), r[3], float(r[4]), float(r[5])) for r in rows]
        found.append(Client(windows, histograms))
    if not found:
        raise FileNotFoundError(f"no chunk-*-trace.csv in {folder}")
    return found


def _histogram(data: str | dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    pairs = ast.literal_eval(data) if isinstance(data, str) else data
    values = np.array([int(float(k)) for k in pairs], np.int64)
    shares = np.array(list(pairs.values()), np.float64)
    return values, shares / shares.sum()


def _draw(histogram: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> int:
    return int(rng.choice(histogram[0], p=histogram[1]))


def _arrivals(
    clients: list[Client], count: int, start: float, rng: np.random.Generator
) -> list[tuple[float, int]]:
    """The first ``count`` of all clients' requests from ``start`` on: seconds and client."""
    streams: list[tuple[float, int]] = []
    for number, client in enumerate(clients):
        taken = 0
        for begin, rate, kind, shape, scale in client.windows:
            if begin + 600 <= start or taken >= count:
                continue
            at = begin
            while taken < count:
                gap = (
                    (rng.weibull(shape) * scale if kind == "Weibull" else rng.gamma(shape, scale))
                    if kind in ("Weibull", "Gamma") and shape > 0
                    else rng.exponential(1 / rate)
                )
                at += max(float(gap), 1e-6)
                if at >= begin + 600:
                    break
                streams.append((at - start, number))
                taken += 1
    streams = sorted(s for s in streams if s[0] >= 0)[:count]
    if len(streams) < count:
        raise ValueError(f"ServeGen has only {len(streams)} requests after hour {start / 3600:g}")
    return streams


def _at(pictures: list[tuple[int, int]], token: float, otherwise: int) -> int:
    for picture, tokens in pictures:
        if token < tokens:
            return picture
        token -= tokens
    return otherwise


def _encoded(arrival: Floats, pictures: list[list[tuple[int, int]]], encoders: int) -> Floats:
    """When each request's pictures are encoded."""
    free = [0.0] * encoders
    done: OrderedDict[int, float] = OrderedDict()
    ready = arrival.copy()
    for i, items in enumerate(pictures):
        for picture, tokens in items:
            if picture in done:
                done.move_to_end(picture)
            else:
                start = max(arrival[i], heapq.heappop(free))
                done[picture] = start + tokens / PICTURE_TOKENS / ENCODER_RATE
                heapq.heappush(free, done[picture])
                if len(done) > CACHED:
                    done.popitem(last=False)
            # One in flight is waited for.
            ready[i] = max(ready[i], done[picture])
    return ready
