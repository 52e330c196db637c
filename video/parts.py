"""Long clips in parts: a plan first, then any part by itself, by any worker.

A part is a stretch of the chosen frames, cut where a run of decoding ends, so that next to nothing
is decoded twice. Its key names its pixels: two parts with one key are equal, whatever files they
come from. So what was once made of a part can be had again without decoding, also for the same
recording with a later end.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from video.clip import Allocate, Clip, SizeOf, Sound, assemble, frame_size
from video.decode import decode_video
from video.execute import decode_runs
from video.head import Video, open_video
from video.long_clip import SOUND_MARGIN, Cut, LongClip, Part, SoundPart
from video.part_keys import PartKeys
from video.pillow_clips import decode_with_pillow
from video.plan import Run, plan_runs
from video.probe import AudioTrack, need, probe
from video.sampling import Sampling, SamplingOptions, sample
from video.sound import decode_track
from video.source import Source

OPEN_CLIPS = 2
"""Clips whose index a worker process remembers."""


def begin_clip(
    source: Source,
    allocate: Allocate = np.zeros,
    *,
    token: str,
    options: SamplingOptions,
    size_of: SizeOf | None = None,
    cut: Cut | None = None,
    sound: bool = True,
    threads: int = 1,
) -> Clip | LongClip:
    """A short clip decoded, a long one planned. `token` names the bytes. Raises as `decode_clip`.

    Pictures that are not read by libav are never cut.
    """
    pictures = decode_with_pillow(source, options, size_of, allocate)
    if pictures is not None:
        return pictures
    cut = cut or Cut()
    opened = _open(source, token)
    audio = need(opened.audio, "sound") if sound and opened.audio is not None else None
    sampling = sample(opened.video.timeline, options)
    if len(sampling.indices) > cut.part_frames:
        return _plan(opened.video, audio, sampling, size_of, cut, threads)
    return decode_video(opened.video, audio, options, size_of, threads=threads, allocate=allocate)


def decode_part(
    source: Source,
    allocate: Allocate = np.zeros,
    *,
    token: str,
    options: SamplingOptions,
    size: tuple[int, int],
    part: Part,
    threads: int = 1,
) -> Clip:
    """The frames of one part, with their times; none when the file is damaged there. Pairs are
    completed as in a whole clip."""
    opened = _open(source, token)
    sampling = _section(sample(opened.video.timeline, options), part.first, part.count)
    frames = allocate((len(sampling.indices), *size, 3), "uint8")
    wanted = np.unique(sampling.indices)
    kept = np.zeros(len(wanted), bool)

    def write(slot: int, frame: np.ndarray) -> None:
        frames[slot] = frame
        kept[slot] = True

    runs = plan_runs(opened.video.timeline, wanted)
    decode_runs(opened.video, runs, size, write, threads)
    duration = opened.video.timeline.duration
    if not kept.any():
        none = len(kept)
        return Clip(frames[:0], sampling.times[:0], sampling.sampled_fps, duration, None, none)
    return assemble(frames, kept, sampling, duration)


def decode_sound_part(
    source: Source, allocate: Allocate = np.zeros, *, token: str, part: SoundPart
) -> Sound:
    """The sound of one part, margins included; shorter, or empty, where the track ends before."""
    opened = _open(source, token)
    assert opened.audio is not None
    start = opened.video.timeline.start + (part.start - part.lead)
    seconds = part.lead + part.seconds + SOUND_MARGIN
    sound = decode_track(source, opened.audio, start, allocate, seconds)
    missing = seconds * sound.rate - sound.samples.shape[1]
    if not part.goes_on or missing <= 0:
        return sound
    samples = allocate((len(sound.samples), seconds * sound.rate), "float32")
    samples[:, :-missing] = sound.samples
    return Sound(samples, sound.rate)


@dataclass(frozen=True)
class _Opened:
    video: Video
    audio: AudioTrack | None


NOTHING = Source(b"")
_opened: OrderedDict[str, _Opened] = OrderedDict()


def _open(source: Source, token: str) -> _Opened:
    """The clip's index and clock, from memory if this process had it of late."""
    found = _opened.pop(token, None)
    if found is None:
        head = probe(source)
        found = _Opened(open_video(source, head), head.audio)
    # Everything is read through the call's own source, which has the budget; kept, it would hold
    # the file's bytes in memory.
    _opened[token] = replace(found, video=replace(found.video, source=NOTHING))
    while len(_opened) > OPEN_CLIPS:
        _opened.popitem(last=False)
    return replace(found, video=replace(found.video, source=source))


def _plan(
    video: Video,
    audio: AudioTrack | None,
    sampling: Sampling,
    size_of: SizeOf | None,
    cut: Cut,
    threads: int,
) -> LongClip:
    total = len(sampling.indices)
    size = frame_size(size_of, total, video.height, video.width, video.source.limits)
    runs = plan_runs(video.timeline, np.unique(sampling.indices))
    keys = PartKeys(video, size)

    def part(place: tuple[int, int]) -> Part:
        first, stop = place
        section = _section(sampling, first, stop - first)
        own = plan_runs(video.timeline, np.unique(section.indices))
        return Part(first, stop - first, keys.pictures(own))

    # Keys are hashes of most of the file.
    with ThreadPoolExecutor(threads, "keys") as pool:
        parts = tuple(pool.map(part, cut_parts(runs, total, cut.part_frames)))
    heard: list[SoundPart] = []
    if audio is not None:
        end = float(sampling.times[-1]) + 1 / sampling.sampled_fps
        heard = list(_sound_parts(keys, audio, end, cut.sound_seconds))
    return LongClip(
        sampling.times,
        size,
        sampling.sampled_fps,
        video.timeline.duration,
        parts,
        tuple(heard),
    )


def _sound_parts(
    keys: PartKeys, track: AudioTrack, end: float, seconds: int
) -> Iterator[SoundPart]:
    """The parts until the picture ends, `end` seconds after it began, or the sound does."""
    stop = keys.sound_end(track)
    for start in range(0, math.ceil(end if stop is None else min(end, stop)), seconds):
        goes_on = stop is not None and start + seconds + SOUND_MARGIN <= stop
        yield SoundPart(start, seconds, keys.sound(track, start, seconds), goes_on)


def cut_parts(runs: list[Run], total: int, frames: int) -> list[tuple[int, int]]:
    """(first slot, slot behind the last) of each part of `total` slots, an even number.

    A part ends with the run in which it reaches `frames` slots, unless that leaves an odd number:
    pairs of frames stay together. After half as many slots again it ends at once. Cuts depend on
    what is before them alone, so that a clip with a later end has the same ones.
    """
    ends = {run.slots[-1] + 1 for run in runs}
    cuts, first = [], 0
    for stop in range(2, total + 1, 2):
        length = stop - first
        late = length >= frames + frames // 2 - 1
        if stop == total or late or (length >= frames and stop in ends):
            cuts.append((first, stop))
            first = stop
    return cuts


def _section(sampling: Sampling, first: int, count: int) -> Sampling:
    where = slice(first, first + count)
    return Sampling(sampling.indices[where], sampling.times[where], sampling.sampled_fps)
