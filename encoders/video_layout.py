"""Token layout of a clip: timestamps, vision rows and interleaved sound (family rule).

Source: SGLang 0.5.23 `multimodal/processors/mimo_v2.py`, restated in mimo-v2.md section 5. Two
deviations, both where the original breaks: timestamps are true presentation times instead of
index / average fps, and a pair may have no sound at all (a track that is shorter than the picture
fails an assertion there). Pure functions over plain numbers; no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from encoders.embedding import Embedding, Rows, RowsArray, Segment, Special, Text

AUDIO_ROWS_PER_SECOND = 6.25
TEMPORAL_PATCH = 2
SPATIAL_MERGE = 2


@dataclass(frozen=True)
class Pair:
    """A temporal pair of frames: its time in seconds and its sound rows start..stop-1."""

    index: int
    time: float
    audio_start: int
    audio_stop: int

    @property
    def audio_count(self) -> int:
        return self.audio_stop - self.audio_start


def format_timestamp(seconds: float) -> str:
    """`MM:SS`, rounded down; minutes grow past two digits for clips of 100 minutes and more."""
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"


def plan_pairs(
    times: Sequence[float],
    audio_rows: int = 0,
    *,
    audio_rows_per_second: float = AUDIO_ROWS_PER_SECOND,
    temporal_patch: int = TEMPORAL_PATCH,
) -> list[Pair]:
    """Pairs of the sampled frames, each with its share of `audio_rows` sound rows.

    `times` holds the presentation time in seconds of every sampled frame, in order, before the
    last frame is repeated to complete a pair. Pair i owns the rows from int(t_i * 6.25) to
    int(t_{i+1} * 6.25); the last ends at int(end * 6.25) with end = last time + 1 / sampled fps
    and sampled fps = 1 / (t_1 - t_0) (1 if there are fewer than two frames or no time passes
    between them). Shares are clipped to the rows that exist, so they may be empty; rows past the
    end are dropped.
    """
    if not len(times):
        raise ValueError("a clip needs at least one frame time")
    gap = float(times[1] - times[0]) if len(times) > 1 else 1.0
    end = float(times[-1]) + (gap if gap > 0 else 1.0)
    starts = [float(time) for time in times[::temporal_patch]]
    edges = [min(max(int(time * audio_rows_per_second), 0), audio_rows) for time in [*starts, end]]
    return [
        Pair(index, time, edges[index], max(edges[index], edges[index + 1]))
        for index, time in enumerate(starts)
    ]


def group_pairs(pairs: Sequence[Pair], interleave: int) -> list[list[Pair]]:
    """Pairs that share one timestamp and one sound span.

    `interleave` 0 = one pair per group, -1 = one group for the whole clip, L > 0 = neighbouring
    pairs whose time falls into the same bucket of L seconds.
    """
    if interleave < -1:
        raise ValueError(f"interleave must be -1, 0 or a number of seconds, got {interleave}")
    if interleave == -1:
        return [list(pairs)]
    if interleave == 0:
        return [[pair] for pair in pairs]
    buckets = itertools.groupby(pairs, key=lambda pair: int(pair.time // interleave))
    return [list(group) for _, group in buckets]


def video_layout(
    times: Sequence[float],
    grid: tuple[int, int, int],
    audio_rows: int = 0,
    *,
    interleave: int = 0,
    merge: int = SPATIAL_MERGE,
    audio_rows_per_second: float = AUDIO_ROWS_PER_SECOND,
) -> tuple[Segment, ...]:
    """Layout of a clip of `grid` (t, h, w) in patches, with `audio_rows` rows of sound (0 = none).

    Without sound: start, then per pair timestamp, vision start, h*w/merge² rows, vision end; then
    end. With sound: per group the timestamp of its first pair, the vision spans of all its pairs,
    one audio span of all its rows (left out when the group has none).
    """
    layout, _ = _plan(times, grid, audio_rows, interleave, merge, audio_rows_per_second)
    return layout


def compose_video(
    digest: str,
    times: Sequence[float],
    grid: tuple[int, int, int],
    vision: RowsArray,
    audio: RowsArray | None = None,
    *,
    interleave: int = 0,
    merge: int = SPATIAL_MERGE,
    audio_rows_per_second: float = AUDIO_ROWS_PER_SECOND,
) -> Embedding:
    """A clip's embedding: vision rows [t*h*w/merge², hidden], then those sound rows that are used.

    `times` as in `plan_pairs`, `audio` the rows of the whole sound track starting with the picture.
    Raises `ValueError` when grid, times and rows do not belong together.
    """
    t, h, w = grid
    if len(vision) * merge * merge != t * h * w:
        raise ValueError(f"{len(vision)} vision rows do not fill the grid {grid}")
    count = len(audio) if audio is not None else 0
    layout, groups = _plan(times, grid, count, interleave, merge, audio_rows_per_second)
    if audio is None or not count:
        return Embedding("video", digest, layout, vision)
    # Neighbouring pairs share an edge, so what is heard is one piece of the track.
    heard = audio.slice(groups[0][0].audio_start, groups[-1][-1].audio_stop)
    return Embedding("video", digest, layout, RowsArray.concat([vision, heard]))


def compose_parts(
    digest: str,
    times: Sequence[float],
    vision: Sequence[RowsArray],
    audio: Sequence[RowsArray] = (),
    *,
    interleave: int = 0,
    merge: int = SPATIAL_MERGE,
    audio_rows_per_second: float = AUDIO_ROWS_PER_SECOND,
) -> Embedding:
    """As `compose_video`, from the rows of a clip's parts in order; all pairs have as many rows."""
    rows = RowsArray.concat(vision)
    pairs = len(times) // TEMPORAL_PATCH
    if not pairs or len(rows) % pairs:
        raise ValueError(f"{len(rows)} vision rows do not belong to {len(times)} frames")
    return compose_video(
        digest,
        times,
        (pairs, merge, merge * (len(rows) // pairs)),  # only the product of the sides matters
        rows,
        RowsArray.concat(audio) if audio else None,
        interleave=interleave,
        merge=merge,
        audio_rows_per_second=audio_rows_per_second,
    )


def _plan(
    times: Sequence[float],
    grid: tuple[int, int, int],
    audio_rows: int,
    interleave: int,
    merge: int,
    audio_rows_per_second: float,
) -> tuple[tuple[Segment, ...], list[list[Pair]]]:
    t, h, w = grid
    pairs = plan_pairs(times, audio_rows, audio_rows_per_second=audio_rows_per_second)
    if len(pairs) != t:
        raise ValueError(f"{len(times)} frame times make {len(pairs)} pairs, the grid has {t}")
    # Grouping is a matter of where sound goes: a silent clip has one timestamp per pair.
    groups = group_pairs(pairs, interleave if audio_rows else 0)
    rows_per_pair = h * w // (merge * merge)
    layout: list[Segment] = [Special("<|mimo_video_start|>")]
    for group in groups:
        layout.append(Text(format_timestamp(group[0].time)))
        for _ in group:
            layout.append(Special("<|vision_start|>"))
            layout.append(Rows("video", rows_per_pair))
            layout.append(Special("<|vision_end|>"))
        audio_count = sum(pair.audio_count for pair in group)
        if audio_count:
            layout.append(Special("<|mimo_audio_start|>"))
            layout.append(Rows("audio", audio_count))
            layout.append(Special("<|mimo_audio_end|>"))
    layout.append(Special("<|mimo_video_end|>"))
    return tuple(layout), groups
