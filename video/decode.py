"""A clip from file bytes: the whole way in one plain, synchronous function."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from video.clip import Allocate, Clip, SizeOf, assemble, frame_size
from video.execute import decode_runs
from video.head import Video, open_video
from video.pillow_clips import decode_with_pillow
from video.plan import plan_runs
from video.probe import AudioTrack, probe
from video.sampling import SamplingOptions, sample
from video.sound import decode_track
from video.source import Source


def decode_clip(
    source: Source,
    options: SamplingOptions,
    size_of: SizeOf | None = None,
    *,
    sound: bool = True,
    threads: int = 1,
    chunks: int | None = None,
    allocate: Allocate = np.zeros,
) -> Clip:
    """Decodes the frames that `options` choose, in the size that `size_of` gives (the native size
    without it), and the sound track.

    threads, chunks: see `video.execute.decode_runs`; the result does not depend on them.

    Chosen frames that cannot be decoded are left out with their times; when an odd number remains,
    the last frame is repeated. Raises MediaError when nothing decodes, and for everything listed
    in `probe`, `SamplingOptions` and `Limits`.
    """
    pictures = decode_with_pillow(source, options, size_of, allocate)
    if pictures is not None:
        return pictures
    found = probe(source)
    video = open_video(source, found)
    audio = found.need_audio() if sound and found.audio is not None else None
    return decode_video(
        video, audio, options, size_of, threads=threads, chunks=chunks, allocate=allocate
    )


def decode_video(
    video: Video,
    audio: AudioTrack | None,
    options: SamplingOptions,
    size_of: SizeOf | None = None,
    *,
    threads: int = 1,
    chunks: int | None = None,
    allocate: Allocate = np.zeros,
) -> Clip:
    """As `decode_clip`, of a file that has been opened; the sound is that of `audio`."""
    source = video.source
    sampling = sample(video.timeline, options)
    wanted = np.unique(sampling.indices)
    size = frame_size(size_of, len(sampling.indices), video.height, video.width, source.limits)
    frames = allocate((len(sampling.indices), *size, 3), "uint8")
    kept = np.zeros(len(wanted), bool)

    def write(slot: int, frame: np.ndarray) -> None:
        frames[slot] = frame
        kept[slot] = True

    runs = plan_runs(video.timeline, wanted)
    decode_runs(video, runs, size, write, threads, chunks)
    clip = assemble(frames, kept, sampling, video.timeline.duration)
    if audio is not None:
        track = decode_track(source, audio, video.timeline.start, allocate)
        clip = replace(clip, sound=track)
    return clip
