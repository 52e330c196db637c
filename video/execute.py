"""Executes chunks: wanted frames, upright RGB, scaled on the way.

Damage (case 39): a wanted frame that gives no picture, or one that the decoder itself marks as
corrupt, is left out together with its time; the frames around it are kept. Frames predicted from
concealed ones are kept as any player shows them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from video.decoder import RangeDecoder
from video.head import Video
from video.picture import Pictures
from video.plan import CHUNKS_PER_THREAD, Chunk, Run, plan_chunks

Write = Callable[[int, np.ndarray], None]
"""Takes a slot and its frame, uint8 [height, width, 3]; called from several threads."""


def decode_runs(
    video: Video,
    runs: list[Run],
    size: tuple[int, int],
    write: Write,
    threads: int = 1,
    chunks: int | None = None,
) -> None:
    """Decodes all runs, cut into `chunks` (by default some for each thread), on `threads` threads,
    which take the next chunk as they finish one.

    Each frame goes to `write` as soon as it is there, so nothing but the wanted frames, already
    scaled to `size`, is ever held (case 45). The first failure ends the work.
    """
    cut = plan_chunks(runs, video.index, chunks or threads * CHUNKS_PER_THREAD, video.pixels)
    todo = deque(cut)

    def work() -> None:
        pictures = Pictures(video.orientation.size(*size))
        try:
            with video.decoder() as decoder:
                while (chunk := _next(todo)) is not None:
                    for slot, frame in decode_chunk(video, chunk, decoder, pictures):
                        write(slot, frame)
        except BaseException:
            todo.clear()
            raise

    threads = min(threads, len(cut))
    if threads == 1:
        work()
        return
    with ThreadPoolExecutor(threads, "decode") as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()


def _next(todo: deque[Chunk]) -> Chunk | None:
    try:
        return todo.popleft()
    except IndexError:
        return None


def decode_chunk(
    video: Video, chunk: Chunk, decoder: RangeDecoder, pictures: Pictures
) -> Iterator[tuple[int, np.ndarray]]:
    """(slot, uint8 [height, width, 3] view) for every wanted frame of the chunk that decodes."""
    for run in chunk.runs:
        for slot, frame in _wanted(video, run, decoder):
            video.source.budget.check()
            picture = pictures.rgb(frame)
            if picture is not None:
                yield slot, video.orientation.apply(picture)


def _wanted(video: Video, run: Run, decoder: RangeDecoder) -> Iterator[tuple[int, Any]]:
    timeline = video.timeline
    if timeline.counted:
        slot_of = dict(zip(run.frames, run.slots, strict=True))
    else:
        slot_of = dict(zip(timeline.ticks[list(run.frames)].tolist(), run.slots, strict=True))
    needed = None if timeline.counted or not video.progressive else frozenset(slot_of)
    frames = decoder.frames(run.first_packet, run.last_packet, needed)
    for count, frame in enumerate(frames):
        slot = slot_of.pop(count if timeline.counted else frame.pts, None)
        if slot is not None and not frame.is_corrupt:
            yield slot, frame
        if not slot_of:
            return
