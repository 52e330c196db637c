"""Which packets to decode for the wanted frames, cut into chunks that can run side by side.

A run is one uninterrupted stretch of decoding: from the key packet before its wanted frames to the
last packet they need. Runs are settled by the wanted frames alone, always start from a clean
decoder, and a chunk is a number of whole runs: so no result depends on the number of chunks, not
even in damaged files (case 46).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from video.index import PacketIndex
from video.timeline import Timeline

PIXELS_PER_BYTE = 80
"""Pixels that take as long as one coded byte: measured with H.264 on one core, 1.4 ns for a pixel
(prediction, filters) and 0.12 us for a byte (entropy decoding)."""
CHUNKS_PER_THREAD = 4
"""So that no thread is idle for long when chunks take other times than estimated."""


@dataclass(frozen=True)
class Run:
    first_packet: int
    last_packet: int
    frames: tuple[int, ...]
    """Wanted frames, ascending indices into the timeline."""
    slots: tuple[int, ...]
    """Place of each in the result."""


@dataclass(frozen=True)
class Chunk:
    runs: tuple[Run, ...]


def plan_runs(timeline: Timeline, frames: np.ndarray) -> list[Run]:
    """One run per key packet that wanted frames (int64, ascending, distinct) depend on."""
    runs = []
    starts = timeline.first_packet[frames]
    cuts = np.flatnonzero(np.diff(starts)) + 1
    for slots in np.split(np.arange(len(frames)), cuts):
        wanted = frames[slots]
        runs.append(
            Run(
                first_packet=int(starts[slots[0]]),
                last_packet=int(timeline.last_packet[wanted[-1]]),
                frames=tuple(wanted.tolist()),
                slots=tuple(slots.tolist()),
            )
        )
    return runs


def plan_chunks(runs: list[Run], index: PacketIndex, chunks: int, pixels: int = 0) -> list[Chunk]:
    """The runs in order, in at most `chunks` parts of about equal cost; frames of `pixels` each."""
    cost = np.concatenate([[0], np.cumsum(index.size * PIXELS_PER_BYTE + pixels)])
    ends = np.cumsum([cost[run.last_packet + 1] - cost[run.first_packet] for run in runs])
    # A run belongs to the part in which its middle falls.
    middles = ends - np.diff(ends, prepend=0) / 2
    parts = np.minimum((middles * chunks / ends[-1]).astype(int), chunks - 1)
    return [
        Chunk(tuple(run for run, at in zip(runs, parts, strict=True) if at == part))
        for part in np.unique(parts)
    ]
