"""Long clips in parts: the same frames and sound as at once, and keys that follow the content."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.video.clips import CLOSED, OPEN, Clip, Track, damage, draw, numbers
from video.clip import Clip as Decoded
from video.decode import decode_clip
from video.long_clip import Cut, LongClip
from video.parts import begin_clip, cut_parts, decode_part, decode_sound_part
from video.plan import Run
from video.sampling import SamplingOptions
from video.source import Source

ALL = SamplingOptions(fps=1000.0)
LARGE = {"g": "30", "crf": "4", "preset": "veryfast", "bf": "0", "x264-params": "scenecut=0"}
KINDS = {
    "mp4": Clip(240, options=CLOSED),
    "open gop": Clip(240, options=OPEN),
    "long gop": Clip(240, options=CLOSED | {"g": "250"}),
    "matroska": Clip(240, options=CLOSED, container="matroska"),
    "mpegts": Clip(240, options=OPEN, container="mpegts"),
    "avi, no presentation times": Clip(240, options=CLOSED, container="avi"),
    "vp9": Clip(
        240, container="webm", codec="libvpx-vp9",
        options={"deadline": "realtime", "cpu-used": "8", "g": "24"},
    ),
    "rotated": Clip(240, options=CLOSED, rotation=90),
    "gif": Clip(240, codec="gif", container="gif", pix_fmt="rgb8", rate=10),
}  # fmt: skip


def plan(data: bytes, options: SamplingOptions = ALL, frames: int = 64, **kwargs: object):
    found = begin_clip(
        Source(data), token=str(hash(data)), options=options, cut=Cut(frames, 1), **kwargs
    )
    assert isinstance(found, LongClip)
    return found


def decode_parts(data: bytes, found: LongClip, options: SamplingOptions = ALL) -> list[Decoded]:
    token = str(hash(data))
    # Any order will do.
    order = np.random.default_rng(0).permutation(len(found.parts))
    parts = {
        n: decode_part(
            Source(data), token=token, options=options, size=found.size, part=found.parts[n],
            threads=1 + n % 3,
        )
        for n in order.tolist()
    }  # fmt: skip
    return [parts[n] for n in range(len(parts))]


TIMES = tuple(n / 15 for n in range(99))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [ALL, SamplingOptions(num_frames=100), SamplingOptions(times=TIMES)]
)
def test_parts_are_the_whole(kind, options):  # case 46
    data = KINDS[kind].encode()
    whole = decode_clip(Source(data), options)
    found = plan(data, options, frames=40)
    assert len(found.parts) >= 2
    parts = decode_parts(data, found, options)
    assert np.array_equal(np.concatenate([p.frames for p in parts]), whole.frames)
    assert np.array_equal(np.concatenate([p.times for p in parts]), whole.times)
    assert np.array_equal(found.times, whole.times)
    assert (found.duration, found.sampled_fps) == (whole.duration, whole.sampled_fps)
    assert all(part.count % 2 == 0 for part in found.parts)


def test_a_short_clip_comes_at_once():
    data = Clip(60, options=CLOSED, track=Track(2.0, 0.5)).encode()
    found = begin_clip(Source(data), token="short", options=ALL, cut=Cut(60))
    whole = decode_clip(Source(data), ALL)
    assert isinstance(found, Decoded)
    assert np.array_equal(found.frames, whole.frames)
    assert found.sound is not None


def test_more_times_change_no_earlier_key():
    data = Clip(240, options=CLOSED).encode()
    keys = [
        [part.key for part in plan(data, SamplingOptions(times=TIMES[:count]), frames=20).parts]
        for count in (70, 99)
    ]
    assert len(keys[0]) >= 3
    assert keys[0][:-1] == keys[1][: len(keys[0]) - 1]


def shorten(data: bytes, frames: int, container: str = "mp4") -> bytes:
    """The first packets of a clip in a file of their own."""
    target = io.BytesIO()
    with (
        av.open(io.BytesIO(data)) as source,
        av.open(target, "w", format=container) as output,
    ):
        streams = [output.add_stream_from_template(stream) for stream in source.streams]
        end = frames / 30
        for packet in source.demux():
            if packet.size and packet.pts * packet.time_base < end:
                packet.stream = streams[packet.stream_index]
                output.mux(packet)
    return target.getvalue()


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
def test_a_later_end_changes_no_earlier_key(container):
    track = Track(8.0, 0.5)
    data = Clip(240, options=CLOSED | {"g": "10"}, container=container, track=track).encode()
    whole = plan(data, frames=20)
    start = plan(shorten(data, 150, container), frames=20)
    assert len(start.times) in (148, 150)  # MPEG-TS begins a little later than 0
    same = [a.key == b.key for a, b in zip(start.parts, whole.parts, strict=False)]
    assert same[:-1] == [True] * (len(start.parts) - 1)
    heard = [a.key == b.key for a, b in zip(start.sound, whole.sound, strict=False)]
    assert heard[:2] == [True, True]  # later ones are near the end
    assert len({part.key for part in whole.parts}) == len(whole.parts)


def test_a_repeated_scene_has_a_key_of_its_own_only_where_it_differs():
    data = Clip(240, options=CLOSED).encode()
    keys = [part.key for part in plan(data).parts]
    assert [part.key for part in plan(data).parts] == keys
    every_second = SamplingOptions(num_frames=120)
    assert not {part.key for part in plan(data, every_second).parts} & set(keys)
    small = plan(data, size_of=lambda *_: (24, 32))
    assert not {part.key for part in small.parts} & set(keys)
    spoiled = [part.key for part in plan(damage(data, 0.5, 8)).parts]
    assert 1 <= sum(a != b for a, b in zip(keys, spoiled, strict=True)) <= 2


def test_a_part_that_is_lost_has_no_frames():  # case 39
    clip = Clip(240, 160, 120, options=LARGE)
    data = bytearray(clip.encode())
    found = plan(bytes(data), frames=30)
    with Source(bytes(data)).open() as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    for position, size in packets[60:90]:
        data[position : position + size] = bytes(size)
    parts = decode_parts(bytes(data), found)
    assert [len(p.frames) for p in parts] == [30, 30, 0, 30, 30, 30, 30, 30]
    assert parts[2].lost == 30
    assert numbers(parts[3].frames) == list(range(90, 120))


@pytest.mark.parametrize(
    ("codec", "container", "exact"),
    [
        ("pcm_s16le", "mov", True),
        ("flac", "mp4", True),
        ("pcm_s16le", "avi", True),
        ("pcm_s16le", "matroska", False),
        ("aac", "mp4", False),
        ("libopus", "webm", False),
        ("libmp3lame", "mpegts", False),
    ],
)
def test_parts_of_the_sound_are_the_whole(codec, container, exact):
    class Waves(Track):
        def samples(self) -> np.ndarray:
            at = np.arange(round(self.seconds * self.rate)) / self.rate
            wave = 0.4 * np.sin(2 * np.pi * (200 + 40 * at) * at)
            return np.stack([wave, -wave]).astype(np.float32)

    kind = {"webm": {"codec": "libvpx", "options": {"deadline": "realtime", "cpu-used": "8"}}}
    track = Waves(8.0, None, 48000, 2, codec)
    clip = Clip(240, container=container, track=track, **kind.get(container, {"options": CLOSED}))
    data = clip.encode()
    whole = decode_clip(Source(data), ALL).sound
    assert whole is not None
    found = plan(data)
    assert [part.start for part in found.sound] == list(range(8))
    for part in found.sound:
        sound = decode_sound_part(Source(data), token=str(hash(data)), part=part)
        first = (part.start - part.lead) * 48000
        wanted = whole.samples[:, first : first + (part.lead + 2) * 48000]
        assert sound.rate == 48000
        assert abs(sound.samples.shape[1] - wanted.shape[1]) <= (0 if exact else 2000)
        errors = []
        for shift in range(60) if container in ("matroska", "webm") else (0,):
            # Each part begins where the clock says, here rounded to milliseconds (twice).
            for a, b in ((sound.samples, wanted), (wanted, sound.samples)):
                count = min(a.shape[1] - shift, b.shape[1], 48000)
                errors.append(np.abs(a[:, shift : shift + count] - b[:, :count]).max())
        assert min(errors) <= (0 if exact else 0.01)


def test_sound_that_ends_before_the_picture():  # case 49
    data = Clip(240, options=CLOSED, track=Track(2.0, 0.5)).encode()
    found = plan(data)
    lengths = [
        decode_sound_part(Source(data), token="t", part=part).samples.shape[1] / 48000
        for part in found.sound
    ]
    assert np.allclose(lengths, [2.0, 2.0, 1.0][: len(lengths)], atol=0.05)
    assert len(lengths) in (2, 3)  # AAC pads the end
    assert plan(Clip(240, options=CLOSED).encode()).sound == ()


def test_a_late_track_is_silent_before_it_begins():
    data = Clip(
        240, options=CLOSED, container="matroska", track=Track(4.0, 0.5, start=3.0)
    ).encode()
    found = plan(data)
    sound = decode_sound_part(Source(data), token="late", part=found.sound[3])
    assert abs(np.abs(sound.samples[0]).argmax() / 48000 - 1.5) < 0.003


def test_a_silence_within_a_track_is_no_end():
    target = io.BytesIO()
    with av.open(target, "w", format="matroska") as output:
        video = output.add_stream("libx264", rate=30, options=CLOSED)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio = output.add_stream("pcm_s16le", rate=8000, layout="mono")
        for number in range(240):
            frame = av.VideoFrame.from_ndarray(draw(number, 64, 48)).reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 30)
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
        for first in [
            *range(0, 12_000, 1000),
            *range(48_000, 64_000, 1000),
        ]:  # 1.5 s to 6 s is missing
            block = np.full((1, 1000), 0.5, np.float32)
            sound = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
            sound.sample_rate, sound.pts, sound.time_base = 8000, first, Fraction(1, 8000)
            output.mux(audio.encode(sound))
        output.mux(audio.encode(None))
    data = target.getvalue()
    found = plan(data)
    assert [part.start for part in found.sound] == list(range(8))
    for part in found.sound[:6]:
        sound = decode_sound_part(Source(data), token="gap", part=part)
        assert sound.samples.shape[1] == (part.lead + 2) * sound.rate
    assert not sound.samples[0, :7900].any()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 30))
def test_cuts(lengths, half):
    """Against the words of the rule."""
    frames = 2 * half
    if sum(lengths) % 2:
        lengths[-1] += 1
    runs, at = [], 0
    for length in lengths:
        slots = tuple(range(at, at + length))
        runs.append(Run(0, 0, slots, slots))
        at += length
    cuts = cut_parts(runs, at, frames)
    assert [first for first, _ in cuts] == [0] + [stop for _, stop in cuts[:-1]]
    assert cuts[-1][1] == at
    ends = set(np.cumsum(lengths).tolist())
    for first, stop in cuts:
        assert (stop - first) % 2 == 0
        if stop < at:
            assert frames <= stop - first <= frames + half + 2
            early = [e for e in ends if first + frames <= e < stop and (e - first) % 2 == 0]
            assert not early
            assert stop in ends or stop - first >= frames + half - 1
    shorter = runs[:-1]
    if shorter and shorter[-1].slots[-1] % 2:
        less = cut_parts(shorter, shorter[-1].slots[-1] + 1, frames)
        assert less[:-1] == cuts[: len(less) - 1]
