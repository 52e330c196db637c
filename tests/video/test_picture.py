"""Colour, range, HDR and interlace: pictures held to arithmetic written down once more here."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from tests.video.clips import Clip, numbers
from video.colour import hlg_inverse_oetf, pq_eotf
from video.decode import decode_clip
from video.picture import Pictures
from video.sampling import SamplingOptions
from video.source import Source

WEIGHTS = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}
"""Kr and Kb by the matrix's number in ISO/IEC 23091-2."""
UNSPECIFIED = 2
COLOURS = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (0, 0, 0), (0.8, 0.5, 0.2)]


def coded(rgb: tuple[float, ...], matrix: int, full: bool, bits: int) -> list[int]:
    """Y, Cb, Cr of a colour (BT.601, BT.709, BT.2020)."""
    kr, kb = WEIGHTS[matrix]
    red, green, blue = rgb
    luma = kr * red + (1 - kr - kb) * green + kb * blue
    chroma = ((blue - luma) / (2 - 2 * kb), (red - luma) / (2 - 2 * kr))
    most, step = (1 << bits) - 1, 1 << (bits - 8)
    if full:
        values = [luma * most] + [c * most + (1 << (bits - 1)) for c in chroma]
    else:
        values = [step * (16 + 219 * luma)] + [step * (128 + 224 * c) for c in chroma]
    return [round(min(max(v, 0), most)) for v in values]


def plain(values: list[int], form: str, size: tuple[int, int] = (24, 32)) -> av.VideoFrame:
    """A frame of one colour."""
    frame = av.VideoFrame(size[1], size[0], form)
    kind = np.uint16 if "10" in form else np.uint8
    for plane, value in zip(frame.planes, values, strict=True):
        words = plane.height * plane.line_size // np.dtype(kind).itemsize
        plane.update(np.full(words, value, kind).tobytes())
    return frame


def shown(frame: av.VideoFrame) -> np.ndarray:
    """The one colour of a frame, int [3]."""
    picture = Pictures((16, 16)).rgb(frame)
    assert picture is not None
    assert picture.dtype == np.uint8
    assert (picture == picture[0, 0]).all()
    return picture[0, 0].astype(int)


@pytest.mark.parametrize("form", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv444p10le"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("matrix", WEIGHTS)
def test_matrix_and_range_are_those_of_the_metadata(matrix, full, form):
    for colour in COLOURS:
        frame = plain(coded(colour, matrix, full, 10 if "10" in form else 8), form)
        frame.colorspace, frame.color_range = matrix, 2 if full else 1
        assert np.abs(shown(frame) - 255 * np.array(colour)).max() <= 3


@pytest.mark.parametrize("height", [24, 1080])
def test_without_metadata_a_frame_is_bt601_in_limited_range(height):
    for colour in COLOURS:
        frame = plain(coded(colour, 6, False, 8), "yuv420p", (height, 32))
        assert (frame.colorspace, frame.color_range) == (UNSPECIFIED, 0)
        assert np.abs(shown(frame) - 255 * np.array(colour)).max() <= 3


def test_the_old_full_range_formats_need_no_metadata():
    for colour in COLOURS:
        frame = plain(coded(colour, 6, True, 8), "yuvj420p")
        assert np.abs(shown(frame) - 255 * np.array(colour)).max() <= 3


def hdr(rgb: tuple[float, ...], transfer: int, primaries: int = 9, bits: int = 10) -> np.ndarray:
    frame = plain(coded(rgb, 9, False, bits), "yuv420p10le")
    frame.colorspace, frame.color_range = 9, 1
    frame.color_trc, frame.color_primaries = transfer, primaries
    return shown(frame)


def pq(nits: float) -> float:
    m1, m2, c1, c2, c3 = 0.1593017578125, 78.84375, 0.8359375, 18.8515625, 18.6875
    y = (nits / 10_000) ** m1
    return float(((c1 + c2 * y) / (1 + c3 * y)) ** m2)


def tone(light: float) -> float:
    """The documented curve, 1 = reference white."""
    peak, knee = 1000 / 203, 0.6
    if light <= knee:
        return light
    over, span = (min(light, peak) - knee) / (1 - knee), (peak - knee) / (1 - knee)
    return knee + (1 - knee) * over * (1 + over / span**2) / (1 + over)


@pytest.mark.parametrize("nits", [0, 1, 10, 50, 100, 203, 400, 1000, 4000, 10_000])
def test_pq_greys(nits):
    wanted = 255 * min(tone(nits / 203), 1) ** (1 / 2.4)
    assert np.abs(hdr((pq(nits),) * 3, 16) - wanted).max() <= 3


def test_the_stated_anchors_of_the_rule():
    assert np.abs(hdr((pq(203),) * 3, 16) - 233).max() <= 2
    assert np.abs(hdr((pq(1000),) * 3, 16) - 255).max() <= 1
    assert abs(pq_eotf(np.array(pq(203.0))) - 203) < 0.01
    # BT.2408: reference white is at 75 % in HLG, 58 % in PQ.
    assert abs(pq(203) - 0.58) < 0.002
    assert np.abs(hdr((0.75,) * 3, 18) - 233).max() <= 2
    assert abs(hlg_inverse_oetf(np.array(1.0)) - 1) < 1e-4
    assert abs(hlg_inverse_oetf(np.array(0.5)) - 1 / 12) < 1e-6


def test_brighter_light_is_never_darker():
    for transfer in (16, 18):
        steps = [int(hdr((s,) * 3, transfer)[1]) for s in np.linspace(0, 1, 65)]
        assert steps == sorted(steps)
        assert len(set(steps)) > 40


def test_hdr_colours_keep_their_hue():
    # BT.709 red, written with the primaries of BT.2020 at 100 cd/m2.
    red = np.array([0.6274, 0.0691, 0.0164]) * 100
    seen = hdr(tuple(pq(v) for v in red), 16)
    assert abs(seen[0] - 255 * (100 / 203) ** (1 / 2.4)) <= 4
    assert seen[1:].max() <= 40
    # With the primaries of BT.709 nothing is to be converted.
    plain_red = hdr((pq(100), 0, 0), 16, primaries=1)
    assert abs(plain_red[0] - 255 * (100 / 203) ** (1 / 2.4)) <= 4
    assert plain_red[1:].max() <= 3


def test_wide_gamut_without_hdr():
    red = tuple(v ** (1 / 2.4) for v in (0.6274, 0.0691, 0.0164))
    seen = hdr(red, 14)
    assert seen[0] >= 250
    assert seen[1:].max() <= 40
    assert np.abs(hdr((0.5,) * 3, 14) - 127.5).max() <= 2  # greys stay


@pytest.mark.parametrize(("name", "transfer"), [("smpte2084", 16), ("arib-std-b67", 18)])
def test_hdr_clips_are_read_as_such(name, transfer):
    params = f"log-level=none:colorprim=bt2020:transfer={name}:colormatrix=bt2020nc"
    clip = Clip(
        frames=8, codec="libx265", width=96, height=80, pix_fmt="yuv420p10le",
        options={"preset": "ultrafast", "x265-params": params},
    )  # fmt: skip
    data = clip.encode()
    with Source(data).open() as container:
        frame = next(container.decode(video=0))
    assert (frame.color_trc, frame.color_primaries, frame.colorspace) == (transfer, 9, 9)
    decoded = decode_clip(Source(data), SamplingOptions(fps=1000))
    assert numbers(decoded.frames) == list(range(8))
    plainly = frame.to_ndarray(format="rgb24")
    assert np.abs(decoded.frames[0].astype(int) - plainly).max() > 10


def fields(first: str, codec: str = "libx264") -> bytes:
    """A bar on the even lines that moves right, one on the odd lines that moves left."""
    options = {"flags": "+ildct+ilme"} | ({"qp": "4"} if codec == "libx264" else {"qscale": "1"})
    target = io.BytesIO()
    graph = av.filter.Graph()
    source = graph.add_buffer(width=64, height=64, format="yuv420p", time_base=Fraction(1, 25))
    mark, sink = graph.add("setfield", first), graph.add("buffersink")
    source.link_to(mark)
    mark.link_to(sink)
    graph.configure()
    with av.open(target, "w", format="mpegts") as output:
        stream = output.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for number in range(6):
            pixels = np.full((64, 64, 3), 40, np.uint8)
            pixels[0::2, 8 + 4 * number : 16 + 4 * number] = 200
            pixels[1::2, 48 - 4 * number : 56 - 4 * number] = 200
            frame = av.VideoFrame.from_ndarray(pixels).reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            graph.push(frame)
            output.mux(stream.encode(graph.pull()))
        output.mux(stream.encode(None))
    return target.getvalue()


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
@pytest.mark.parametrize("first", ["tff", "bff"])
def test_interlaced_frames_are_their_first_field(first, codec):
    clip = decode_clip(Source(fields(first, codec)), SamplingOptions(fps=1000), chunks=2)
    assert len(clip.frames) == 6
    for number, frame in enumerate(clip.frames):
        lit = frame.mean(axis=2) > 120
        at = 8 + 4 * number if first == "tff" else 48 - 4 * number
        for line in (10, 11, 30, 31):  # no combs: even and odd lines show the same
            assert np.abs(np.flatnonzero(lit[line])[[0, -1]] - [at, at + 7]).max() <= 1


def test_frames_of_another_size_midway():
    pictures = Pictures((16, 16))
    small = pictures.rgb(plain(coded((0.8, 0.5, 0.2), 6, False, 8), "yuv420p", (24, 32)))
    large = pictures.rgb(plain(coded((0.8, 0.5, 0.2), 6, False, 8), "yuv444p", (63, 47)))
    assert small is not None
    assert large is not None
    assert np.abs(small.astype(int) - large).max() <= 2
