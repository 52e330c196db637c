"""A clip from file bytes: the whole way in one plain, synchronous function."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from video.clip import Allocate, Clip, SizeOf, assemble, frame_size
from video.execute import decode_chunks
from video.head import open_video
from video.plan import plan_chunks, plan_runs
from video.probe import probe
from video.sampling import SamplingOptions, sample
from video.sound import decode_track
from video.source import Source
from video.webp import decode_webp, is_webp


def decode_clip(
    source: Source,
    options: SamplingOptions,
    size_of: SizeOf | None = None,
    *,
    sound: bool = True,
    chunks: int = 1,
    threads: int = 1,
    allocate: Allocate = np.zeros,
) -> Clip:
    """Decodes the frames that `options` choose, in the size that `size_of` gives (the native size
    without it), and the sound track.

    Chosen frames that cannot be decoded are left out with their times; when an odd number remains,
    the last frame is repeated. Raises MediaError when nothing decodes, and for everything listed
    in `probe`, `SamplingOptions` and `Limits`.
    """
    if is_webp(source.data):
        return decode_webp(source, options, size_of, allocate)
    found = probe(source)
    video = open_video(source, found)
    sampling = sample(video.timeline, options)
    wanted = np.unique(sampling.indices)
    size = frame_size(size_of, len(sampling.indices), video.height, video.width, source.limits)
    frames = allocate((len(sampling.indices), *size, 3), "uint8")
    kept = np.zeros(len(wanted), bool)

    def write(slot: int, frame: np.ndarray) -> None:
        frames[slot] = frame
        kept[slot] = True

    runs = plan_runs(video.timeline, wanted)
    decode_chunks(video, plan_chunks(runs, video.index, chunks), size, write, threads)
    clip = assemble(frames, kept, sampling, video.timeline.duration)
    if sound and found.audio is not None:
        track = decode_track(source, found.need_audio(), video.timeline.start, allocate)
        clip = replace(clip, sound=track)
    return clip
