"""Sound tracks: every sample format, on the right clock. Clicks mark the time."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.video.clips import CLOSED, Clip, Track, damage, sound_file
from video.clip import Sound
from video.decode import decode_clip
from video.errors import MediaError
from video.sampling import SamplingOptions
from video.sound import decode_sound
from video.source import Source


def peak(sound: Sound) -> float:
    """Seconds at which the loudest sample of the first channel sounds."""
    return float(np.abs(sound.samples[0]).argmax() / sound.rate)


def wav(data: bytes, channels: int, rate: int, bits: int, code: int, size: int | None = None):
    """A WAV file written by hand; `size` lies about the length of the data."""
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", code, channels, rate, rate * block, block, bits)
    size = len(data) if size is None else size
    total = min(36 + size, 0xFFFFFFFF)
    return (
        struct.pack("<4sI4s4sI", b"RIFF", total, b"WAVE", b"fmt ", 16)
        + form
        + struct.pack("<4sI", b"data", size)
        + data
    )


WAVE = np.stack([np.linspace(-1, 1, 101) * 0.999, np.linspace(0.5, -0.5, 101)])  # [2, 101]


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", ["u8", "s16", "s24", "s32", "f32", "f64"])
def test_sample_formats(kind, channels):  # cases 51 and 57
    """Oracle: the numbers written."""
    packed = WAVE[:channels].T.reshape(-1)
    bits = int(kind[1:])
    if kind[0] == "f":
        data = packed.astype(f"<f{bits // 8}").tobytes()
    elif kind == "u8":
        data = np.round(packed * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(packed * (2 ** (bits - 1) - 1)).astype("<i8")
        data = b"".join(int(v).to_bytes(bits // 8, "little", signed=True) for v in whole)
    file = wav(data, channels, 22050, bits, 3 if kind[0] == "f" else 1)
    sound = decode_sound(Source(file))
    assert sound.samples.shape == (channels, 101)
    assert sound.samples.dtype == np.float32
    assert sound.rate == 22050
    precision = {"u8": 0.02, "s16": 1e-4}.get(kind, 1e-6)
    assert np.abs(sound.samples - WAVE[:channels]).max() < precision


@pytest.mark.parametrize("channels", [1, 2, 6, 16])
@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000, 96000])
def test_rates_and_channels_come_out_as_they_are(rate, channels):  # cases 51 and 52
    track = Track(1.0, 0.5, rate, channels, "pcm_s16le")
    sound = decode_sound(Source(sound_file(track)))
    assert sound.samples.shape == (channels, rate)
    assert sound.rate == rate
    assert abs(peak(sound) - 0.5) <= 1 / rate
    assert np.abs(sound.samples - track.samples()).max() < 1e-4


@pytest.mark.parametrize(
    ("codec", "container", "rate", "exact"),
    [
        ("libmp3lame", "mp3", 44100, True),  # priming removed
        ("libmp3lame", "mp4", 44100, False),
        ("aac", "ipod", 44100, False),  # priming removed, padding stays
        ("libopus", "ogg", 48000, True),
        ("libopus", "webm", 48000, False),
        ("flac", "flac", 44100, True),
        ("alac", "ipod", 44100, True),
        ("pcm_s16be", "aiff", 44100, True),
        ("pcm_mulaw", "wav", 8000, True),
        ("pcm_s64le", "nut", 44100, True),
        ("wavpack", "matroska", 44100, True),
    ],
)
def test_coded_sounds_start_where_they_should(codec, container, rate, exact):  # case 57
    track = Track(1.0, 0.5, rate, 2, codec)
    sound = decode_sound(Source(sound_file(track, container)))
    assert abs(peak(sound) - 0.5) < 0.001
    assert sound.rate == rate
    length = sound.samples.shape[1] / rate
    assert abs(length - 1.0) < (1 / rate if exact else 0.05)


@pytest.mark.parametrize("count", [0, 1, 2, 10, 159])
@pytest.mark.parametrize("size", [None, 0, 0xFFFFFFFF])
def test_short_files_and_lying_headers(count, size):  # case 54
    data = np.arange(1, count + 1, dtype="<i2").tobytes()
    sound = decode_sound(Source(wav(data, 1, 16000, 16, 1, size)))
    assert sound.samples.shape == (1, count)
    assert sound.rate == 16000
    assert np.array_equal(sound.samples[0] * 32768, np.arange(1, count + 1))


def test_numbers_that_are_none_become_silence():
    data = np.array([0.5, np.nan, np.inf, -np.inf, -0.25], "<f4").tobytes()
    sound = decode_sound(Source(wav(data, 1, 16000, 32, 3)))
    assert sound.samples.tolist() == [[0.5, 0, 0, 0, -0.25]]


def sound_of(clip: Clip) -> Sound:
    sound = decode_clip(Source(clip.encode()), SamplingOptions()).sound
    assert sound is not None
    return sound


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
@pytest.mark.parametrize("start", [0.0, 0.5])
def test_sound_is_on_the_clock_of_the_picture(container, start):
    late = Track(1.0, 0.25, start=start)
    sound = sound_of(Clip(options=CLOSED, container=container, track=late))
    assert abs(peak(sound) - (start + 0.25)) < 0.003


def test_sound_before_the_picture_is_cut():
    clip = Clip(
        options=CLOSED, container="matroska", pts=[n + 12 for n in range(60)],
        track=Track(2.0, 1.0),
    )  # fmt: skip
    sound = sound_of(clip)
    assert abs(peak(sound) - (1.0 - 0.4)) < 0.003
    assert abs(sound.samples.shape[1] / sound.rate - 1.6) < 0.05


def test_sound_that_ends_before_the_picture_begins():
    clip = Clip(
        options=CLOSED, container="matroska", pts=[n + 60 for n in range(60)],
        track=Track(1.0, 0.5),
    )  # fmt: skip
    assert sound_of(clip).samples.shape == (2, 0)


def test_a_track_shorter_than_the_picture_stays_short():  # case 49
    sound = sound_of(Clip(frames=120, options=CLOSED, track=Track(1.0, 0.5)))
    assert abs(sound.samples.shape[1] / sound.rate - 1.0) < 0.05


def test_clips_without_sound():
    assert decode_clip(Source(Clip(options=CLOSED).encode()), SamplingOptions()).sound is None
    both = Clip(options=CLOSED, track=Track(1.0)).encode()
    assert decode_clip(Source(both), SamplingOptions(), sound=False).sound is None
    with pytest.raises(MediaError, match="the file has no sound track"):
        decode_sound(Source(Clip(options=CLOSED).encode()))


def test_a_track_of_zero_samples():  # case 49
    clip = Clip(options=CLOSED, track=Track(0.0, codec="pcm_s16le"), container="matroska")
    assert sound_of(clip).samples.shape == (1, 0)


def test_the_sound_of_a_clip_sent_as_audio():
    data = Clip(options=CLOSED, track=Track(1.0, 0.5)).encode()
    assert abs(peak(decode_sound(Source(data))) - 0.5) < 0.003


@pytest.mark.parametrize("container", ["mp3", "flac", "adts"])
def test_a_damaged_middle_keeps_both_ends_on_the_clock(container):
    codec = {"mp3": "libmp3lame", "flac": "flac", "adts": "aac"}[container]
    track = _Noise(4.0, 3.5, 44100, 1, codec)
    whole = decode_sound(Source(sound_file(track, container)))
    holed = decode_sound(Source(damage(sound_file(track, container), 0.5, 500)))
    assert abs(whole.samples.shape[1] - holed.samples.shape[1]) < 0.3 * 44100
    assert abs(peak(whole) - 3.5) < 0.03  # ADTS keeps its priming
    if container == "flac":  # says where each packet belongs
        assert abs(peak(holed) - 3.5) < 0.001


class _Noise(Track):
    def samples(self) -> np.ndarray:
        wave = super().samples()
        noise = np.random.default_rng(0).normal(0, 0.05, wave.shape).astype(np.float32)
        return np.clip(wave + noise, -0.99, 0.99)


def test_a_gap_between_timestamps_is_silence():
    import io
    from fractions import Fraction

    import av

    target = io.BytesIO()
    with av.open(target, "w", format="matroska") as output:
        stream = output.add_stream("pcm_s16le", rate=8000, layout="mono")
        for first in (0, 1000, 9000):  # a second is missing
            block = np.full((1, 1000), 0.5, np.float32)
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 8000, first, Fraction(1, 8000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    sound = decode_sound(Source(target.getvalue()))
    assert sound.samples.shape == (1, 10_000)
    loud = np.abs(sound.samples[0]) > 0.4
    assert loud[:2000].all()
    assert not loud[2000:9000].any()
    assert loud[9000:].all()


def test_noise_in_place_of_every_packet():
    data = bytearray(sound_file(Track(1.0, 0.5, 48000, 2, "ac3"), "mp4"))
    start, end = data.index(b"mdat") + 4, data.index(b"moov") - 4
    data[start:end] = b"\xff" * (end - start)
    with pytest.raises(MediaError, match="the sound track cannot be decoded"):
        decode_sound(Source(bytes(data)))


@pytest.mark.parametrize(
    ("codec", "container", "channels"),
    [("aac", "ipod", 8), ("wavpack", "matroska", 16), ("flac", "flac", 8)],
)
def test_many_planes(codec, container, channels):  # case 57
    """Each channel clicks at its own time (the low-frequency one of AAC is muffled)."""
    sound = decode_sound(Source(sound_file(_Steps(1.0, 0.0, 48000, channels, codec), container)))
    assert sound.samples.shape[0] == channels
    for channel, samples in enumerate(sound.samples):
        if codec != "aac" or channel != 3:
            assert abs(np.abs(samples).argmax() / 48000 - (0.1 + channel / 20)) < 0.001


class _Steps(Track):
    def samples(self) -> np.ndarray:
        wave = np.zeros((self.channels, round(self.seconds * self.rate)), np.float32)
        for channel in range(self.channels):
            at = round((0.1 + channel / 20) * self.rate)
            wave[channel, at : at + 8] = 0.9
        return wave


def test_a_track_that_changes_midway_keeps_its_first_form():
    import av

    from video.samples import ToFloat

    def frame(format_name: str, layout: str, rate: int, count: int) -> av.AudioFrame:
        planes = 1 if layout == "mono" else 2
        frame = av.AudioFrame.from_ndarray(
            np.full((planes, count), 0.5, np.float32).astype("<f4"), format_name, layout
        )
        frame.sample_rate = rate
        return frame

    first = frame("fltp", "stereo", 48000, 480)
    convert = ToFloat(first)
    blocks = convert(first)
    blocks += convert(frame("fltp", "mono", 24000, 240))
    blocks += convert(frame("fltp", "stereo", 48000, 480))
    blocks += convert.flush()
    assert {len(block) for block in blocks} == {2}
    whole = np.concatenate(blocks, axis=1)
    assert abs(whole.shape[1] - 3 * 480) <= 2
    assert abs(float(np.median(whole)) - 0.5) < 0.2
