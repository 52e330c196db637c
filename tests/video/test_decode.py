"""The right frames with the right times, from many kinds of file. Frames carry their number."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.video.clips import (
    CLOSED,
    OPEN,
    Clip,
    Track,
    damage,
    draw,
    numbers,
    pictures,
    remux,
)
from video.clip import Clip as Decoded
from video.decode import decode_clip
from video.errors import MediaError
from video.head import open_video
from video.limits import Limits
from video.probe import probe
from video.sampling import SamplingOptions
from video.source import Source

VP9 = {"deadline": "realtime", "cpu-used": "8", "g": "12"}
HEVC = {"preset": "ultrafast", "x265-params": "log-level=none:keyint=12:min-keyint=12"}

KINDS = {
    "h264 mp4": Clip(options=CLOSED),
    "h264 open gop": Clip(options=OPEN),
    "h264 matroska": Clip(options=CLOSED, container="matroska"),
    "h264 mpegts": Clip(options=OPEN, container="mpegts"),
    "h264 avi": Clip(options=CLOSED, container="avi"),  # no presentation times
    "h264 raw": Clip(options=CLOSED, container="h264"),  # no times at all
    "h264 flv": Clip(options=CLOSED, container="flv"),
    "h264 fragmented": Clip(options=CLOSED, muxing={"movflags": "frag_keyframe+empty_moov"}),
    "h264 intra": Clip(options={"g": "1", "preset": "veryfast"}),
    "h264 intra refresh": Clip(
        options={"bf": "0", "g": "12", "x264-params": "intra-refresh=1:scenecut=0"}
    ),
    "h264 long gop": Clip(options=CLOSED | {"g": "250"}),
    "h264 full range": Clip(options=CLOSED, pix_fmt="yuvj420p"),
    "h264 4:4:4": Clip(options=CLOSED, pix_fmt="yuv444p"),
    "h264 10 bit": Clip(options=CLOSED, pix_fmt="yuv420p10le"),
    "h264 interlaced": Clip(options={"x264-params": "tff=1"}, height=64),
    "hevc": Clip(codec="libx265", options=HEVC, width=96, height=80),
    "hevc open gop": Clip(
        codec="libx265",
        options=HEVC | {"x265-params": HEVC["x265-params"] + ":open-gop=1:bframes=3"},
        width=96,
        height=80,
    ),
    "hevc 10 bit": Clip(codec="libx265", options=HEVC, pix_fmt="yuv420p10le", width=96, height=80),
    "vp8": Clip(codec="libvpx", container="webm", options=VP9),
    "vp9": Clip(codec="libvpx-vp9", container="webm", options=VP9),
    "vp9 hidden frames": Clip(
        codec="libvpx-vp9",
        container="webm",
        options={"g": "24", "auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "5"},
    ),
    "av1": Clip(60, 128, 96, codec="libsvtav1", options={"g": "12", "preset": "8", "crf": "20"}),
    "mpeg4 mp4": Clip(codec="mpeg4", options={"bf": "2", "g": "12"}),
    "mpeg4 avi": Clip(codec="mpeg4", container="avi", options={"bf": "2", "g": "12"}),
    "mpeg2 mpegts": Clip(codec="mpeg2video", container="mpegts", options={"bf": "2", "g": "12"}),
    "mpeg1 mpeg": Clip(codec="mpeg1video", container="mpeg", options={"bf": "2", "g": "12"}),
    "mjpeg avi": Clip(codec="mjpeg", container="avi", pix_fmt="yuvj420p"),
    "prores mov": Clip(codec="prores_ks", container="mov", pix_fmt="yuv422p10le"),
    "ffv1": Clip(codec="ffv1", container="matroska"),
    "gif": Clip(codec="gif", container="gif", pix_fmt="rgb8", rate=10),
    "apng": Clip(codec="apng", container="apng", pix_fmt="rgb24", rate=10),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request) -> tuple[str, bytes]:
    return request.param, KINDS[request.param].encode()


def decode(data: bytes, chunks: int = 1, threads: int = 1, **options: object) -> Decoded:
    sampling = SamplingOptions().updated(options, limit=3600)
    return decode_clip(Source(data), sampling, chunks=chunks, threads=threads)


def test_frames_and_times(kind):
    name, data = kind
    rate = KINDS[name].rate
    for options, wanted in (
        ({}, [0, 8, 16, 25, 33, 42, 50, 59]),
        ({"num_frames": 2}, [0, 59]),
        ({"fps": 1000}, list(range(60))),
    ):
        clip = decode(data, **options)
        assert numbers(clip.frames) == wanted
        assert np.abs(clip.times - np.array(wanted) / rate).max() < 0.0015
        assert clip.lost == 0
        assert abs(clip.duration - 60 / rate) < 0.0015
        assert abs(clip.sampled_fps - rate / (wanted[1] - wanted[0])) < 0.5
    assert clip.frames.dtype == np.uint8
    assert clip.times.dtype == np.float64
    assert clip.sound is None


def test_chunks_change_nothing(kind):  # case 46
    _, data = kind
    for options in ({"fps": 1000}, {"num_frames": 10}):
        once = decode(data, **options)
        for chunks in range(2, 9):
            again = decode(data, chunks=chunks, threads=chunks % 3 + 1, **options)
            assert np.array_equal(once.frames, again.frames)
            assert np.array_equal(once.times, again.times)


def test_pixels_are_those_of_plain_decoding(kind):
    """Oracle: PyAV decoding from the first packet to the last."""
    name, data = kind
    if name == "h264 interlaced":  # shown field by field: test_picture.py
        return
    with Source(data).open() as container:
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    ours = decode(data, chunks=4, fps=1000)
    assert np.array_equal(ours.frames, np.stack(frames))
    for fps in (3, 7, 11):  # what nothing depends on is left out
        sparse = decode(data, chunks=2, fps=fps)
        wanted = (sparse.times * KINDS[kind[0]].rate).round().astype(int)
        assert np.array_equal(sparse.frames, np.stack(frames)[wanted])


@pytest.mark.parametrize("kind_of_file", ["GIF", "WEBP"])
def test_animations_with_uneven_times(kind_of_file):
    durations = [100, 300, 50, 200, 1000, 100, 100, 150]
    clip = decode(pictures(8, kind_of_file, durations, (64, 48)), fps=1000)
    assert numbers(clip.frames) == list(range(8))
    assert clip.times.round(6).tolist() == [0, 0.1, 0.4, 0.45, 0.65, 1.65, 1.75, 1.85]
    assert clip.duration == 2.0


@pytest.mark.parametrize("kind_of_file", ["GIF", "WEBP"])
def test_a_still_animation_is_two_equal_frames(kind_of_file):
    clip = decode(pictures(1, kind_of_file, 100, (64, 48)))
    assert numbers(clip.frames) == [0, 0]
    assert clip.times.tolist() == [0, 0]
    assert clip.sampled_fps == 1.0


def test_webp_pixels_are_those_of_pillow():
    clip = decode(pictures(3, "WEBP", 100, (50, 31)), fps=1000)
    assert np.array_equal(clip.frames, np.stack([draw(n, 50, 31) for n in (0, 2)]))


@pytest.mark.parametrize("share", [0.5, 0.75, 0.95])
def test_damaged_webp_keeps_the_frames_before(share):  # case 39
    data = pictures(12, "WEBP", 100, (64, 48))
    data = data[: int(len(data) * share)]
    clip = decode(data, fps=1000)
    found = numbers(clip.frames)
    assert found[:2] == [0, 1]
    assert found == sorted(found)
    assert len(found) <= 12 * share


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
def test_variable_frame_rate(container):  # case 40
    pts = [0, 40, 80, 1000, 1040, 1080, 4000, 4500]
    clip = Clip(frames=8, pts=pts, time_base=Fraction(1, 1000), container=container, options=CLOSED)
    decoded = decode(clip.encode(), chunks=3, fps=1000)
    assert numbers(decoded.frames) == list(range(8))
    assert (decoded.times * 1000).round().tolist() == pts


@pytest.mark.parametrize(("width", "height"), [(63, 47), (33, 95), (65, 32)])
@pytest.mark.parametrize("pix_fmt", ["yuv444p", "yuv420p", "yuv420p10le"])
def test_odd_sizes(width, height, pix_fmt):  # case 47
    codec = {"yuv444p": "libx264", "yuv420p": "libvpx-vp9", "yuv420p10le": "ffv1"}[pix_fmt]
    options = {"libx264": CLOSED, "libvpx-vp9": VP9}.get(codec, {})
    clip = Clip(24, width, height, 30, "matroska", codec, pix_fmt, options)
    decoded = decode(clip.encode())
    assert decoded.frames.shape == (8, height, width, 3)
    assert numbers(decoded.frames) == [0, 3, 6, 9, 13, 16, 19, 23]


def test_a_start_that_is_not_zero():  # case 47
    data = remux(KINDS["h264 open gop"].encode(), "mpegts", shift=10)
    clip = decode(data)
    assert numbers(clip.frames) == [0, 8, 16, 25, 33, 42, 50, 59]
    assert clip.times[0] == 0
    assert abs(clip.times[-1] - 59 / 30) < 0.001


@pytest.mark.parametrize("cut", [4, 12, 18])
def test_an_edit_list_hides_the_start(cut):  # case 47
    data = remux(KINDS["h264 mp4"].encode(), shift=Fraction(-cut, 30))
    video = open_video(Source(data), probe(Source(data)))
    assert video.index.discard.sum() == cut % 12  # whole GOPs are not even read
    clip = decode(data, chunks=3, fps=1000)
    assert numbers(clip.frames) == list(range(cut, 60))
    assert clip.times[0] == 0


def test_a_stream_that_starts_in_the_middle():
    whole = KINDS["h264 mpegts"].encode()
    data = whole[188 * (len(whole) // 188 * 3 // 10) :]
    clip = decode(data, fps=1000)
    found = numbers(clip.frames)
    assert found[0] in (12, 24)  # a key frame
    assert found == list(range(found[0], 60))[: len(found)]


@pytest.mark.parametrize("second", [(64, 48), (96, 80)])
def test_a_clock_that_jumps_back_and_a_size_that_changes(second):
    """Two recordings one behind the other: the frames are counted, nothing is lost or mixed."""
    other = Clip(60, *second, container="mpegts", options=CLOSED).encode()
    data = KINDS["h264 mpegts"].encode() + other
    clip = decode(data, fps=1000)
    assert numbers(clip.frames) == [*range(60), *range(60)]
    assert np.abs(clip.times - np.arange(120) / 30).max() < 1e-6
    assert clip.frames.shape[1:] == (48, 64, 3)
    for chunks in (2, 8):
        assert np.array_equal(clip.frames, decode(data, chunks=chunks, fps=1000).frames)


@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
def test_a_truncated_file_gives_what_is_there(share):
    data = KINDS["h264 fragmented"].encode()
    clip = decode(data[: int(len(data) * share)], fps=1000)
    found = numbers(clip.frames)
    assert found[0] == 0
    assert len(set(found)) >= 60 * share - 13


LARGE = {"bf": "2", "g": "30", "crf": "4", "preset": "veryfast", "x264-params": "scenecut=0"}


@pytest.fixture(scope="module", params=["mp4", "matroska", "mpegts", "webm"])
def holed(request) -> bytes:
    """Key frames every 30; 2 KB of noise at 40 %, in the third of five GOPs."""
    clip = Clip(150, 160, 120, 30, request.param, options=LARGE)
    if request.param == "webm":
        vp9 = VP9 | {"g": "30", "crf": "4", "b": "2M"}
        clip = Clip(150, 160, 120, 30, "webm", "libvpx-vp9", options=vp9)
    return damage(clip.encode(), 0.4)


@pytest.mark.parametrize("fps", [1000, 10])
def test_a_damaged_middle_costs_only_its_own_frames(holed, fps):  # case 39
    clip = decode(holed, fps=fps)
    found = np.array(numbers(clip.frames))
    shown = (clip.times * 30).round().astype(int)
    whole = (shown < 60) | (shown >= 120)
    assert (found == shown)[whole].all()
    assert len(set(shown[whole])) >= (85 if fps == 1000 else 29)
    assert len(clip.frames) % 2 == 0
    for chunks in (2, 3, 5, 8):
        again = decode(holed, chunks=chunks, threads=2, fps=fps)
        assert np.array_equal(clip.frames, again.frames)
        assert np.array_equal(clip.times, again.times)
        assert clip.lost == again.lost


def test_a_damaged_middle_of_a_file_without_a_clock():  # case 39
    data = damage(Clip(150, 160, 120, 30, "avi", options=LARGE).encode(), 0.4)
    clip = decode(data, fps=1000)
    found = numbers(clip.frames)
    assert found[:30] == list(range(30))
    assert found[-29:] == sorted(found[-29:])
    assert len(set(range(121, 150)) - set(found)) <= 1  # an even number of frames is taken
    for chunks in (2, 8):
        assert np.array_equal(clip.frames, decode(data, chunks=chunks, fps=1000).frames)


def test_lost_frames_are_counted_and_pairs_stay_whole():  # case 39
    data = damage(Clip(150, 160, 120, options=LARGE).encode(), 0.4)
    clip = decode(data, fps=10)
    assert clip.lost > 0
    assert clip.sampled_fps == 10.0
    assert len(clip.frames) == len(clip.times) == 50 - clip.lost + clip.lost % 2
    repeated = clip.lost % 2 == 1
    assert np.array_equal(clip.frames[-1], clip.frames[-2]) == repeated
    assert (clip.times[-1] == clip.times[-2]) == repeated


def test_random_bytes_after_the_first_key_frame():  # case 44
    clip = Clip(60, 160, 120, options=CLOSED | {"crf": "4"})
    data = clip.encode()
    video = open_video(Source(data), probe(Source(data)))
    first = int(video.index.position[1])
    end = int((video.index.position + video.index.size).max())
    decoded = decode(damage(data, first / len(data), end - first), fps=1000)
    assert numbers(decoded.frames)[0] == 0


def test_nothing_decodes():
    clip = Clip(30, 160, 120, options={"g": "10", "crf": "4"})
    data = clip.encode()
    video = open_video(Source(data), probe(Source(data)))
    first = int(video.index.position.min())
    end = int((video.index.position + video.index.size).max())
    with pytest.raises(MediaError, match="no frame of the video can be decoded"):
        decode(damage(data, first / len(data), end - first))


def test_a_video_track_without_packets():
    data = Clip(frames=0, track=Track(0.5), muxing={"movflags": "empty_moov"}).encode()
    with pytest.raises(MediaError):
        decode(data)


def test_scaled_to_the_asked_size():
    asked = []

    def size_of(frames, height, width):
        asked.append((frames, height, width))
        return 96, 128

    clip = decode_clip(Source(KINDS["h264 mp4"].encode()), SamplingOptions(), size_of)
    assert asked == [(8, 48, 64)]
    assert clip.frames.shape == (8, 96, 128, 3)
    assert numbers(clip.frames) == [0, 8, 16, 25, 33, 42, 50, 59]


def test_a_size_function_may_refuse():
    class Refused(ValueError):
        reason = "the picture is too narrow"

    def size_of(*_):
        raise Refused

    with pytest.raises(MediaError, match="too narrow"):
        decode_clip(Source(KINDS["h264 mp4"].encode()), SamplingOptions(), size_of)


def test_without_a_size_function_frames_shrink_to_the_limit():
    limits = Limits(output_pixels=8 * 24 * 32)
    clip = decode_clip(Source(KINDS["h264 mp4"].encode(), limits), SamplingOptions())
    assert clip.frames.shape == (8, 24, 32, 3)


@pytest.mark.parametrize("container", ["mp4", "mpegts", "matroska"])
def test_key_frames_only(container):
    data = Clip(60, options=OPEN, container=container).encode()
    clip = decode(data, key_frames=True, threads=2)
    found = numbers(clip.frames)
    assert found == sorted(found)
    assert set(found) <= {0, 12, 24, 36, 48}
    assert len(set(found)) >= 4
    assert np.abs(clip.times - np.array(found) / 30).max() < 0.0015  # stamped truly
    with Source(data).open() as opened:
        plain = {f.pts: f.to_ndarray(format="rgb24") for f in opened.decode(video=0)}
    frames = [plain[pts] for pts in sorted(plain)]
    assert all(np.array_equal(a, frames[n]) for a, n in zip(clip.frames, found, strict=True))


def test_explicit_times():
    data = KINDS["h264 open gop"].encode()
    for chunks in (1, 3):
        clip = decode(data, chunks=chunks, times=[0.0, 0.5, 1.0, 1.5, 9.0])
        assert numbers(clip.frames) == [0, 15, 30, 45, 59, 59]
        assert clip.times.round(3).tolist() == [0, 0.5, 1.0, 1.5, 1.967, 1.967]
        assert clip.lost == 0
