"""Files that reach out, and files that ask for too much."""

from __future__ import annotations

import io
import socket

import numpy as np
import pytest

from tests.video.clips import CLOSED, Clip, Track, pictures, sound_file
from video import source
from video.budget import Budget
from video.decode import decode_clip
from video.errors import MediaError
from video.limits import Limits
from video.probe import probe
from video.sampling import SamplingOptions
from video.sound import decode_sound
from video.source import Source


@pytest.fixture(scope="module")
def clip() -> bytes:
    return Clip(options=CLOSED, track=Track(1.0)).encode()


@pytest.fixture
def trap():
    """A loopback server's port, and the list of connections it got."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        yield server
        with pytest.raises(BlockingIOError):  # nobody ever connected
            server.accept()


def references(target: str) -> dict[str, str]:
    return {
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{target}\n#EXT-X-ENDLIST\n",
        "concat": f"ffconcat version 1.0\nfile '{target}'\n",
        "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
        f'mediaPresentationDuration="PT9S"><BaseURL>{target}</BaseURL><Period><AdaptationSet '
        'mimeType="video/mp4"><Representation id="1" bandwidth="1"><SegmentList>'
        f'<SegmentURL media="{target}"/></SegmentList></Representation></AdaptationSet></Period>'
        "</MPD>",
        "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
        "m=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
        "asx": f'<asx version="3.0"><entry><ref href="{target}"/></entry></asx>',
        "text": target,
    }


@pytest.mark.parametrize("kind", references(""))
@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf", b"\n"])
def test_references_are_refused_and_never_followed(kind, prefix, trap):  # case 22
    port = trap.getsockname()[1]
    for target in (f"http://127.0.0.1:{port}/a.ts", f"tcp://127.0.0.1:{port}", "/etc/passwd"):
        data = prefix + references(target)[kind].encode()
        with pytest.raises(MediaError):
            decode_clip(Source(data), SamplingOptions())
        with pytest.raises(MediaError):
            decode_sound(Source(data))


@pytest.mark.parametrize("kind", ["hls", "concat", "dash", "sdp"])
# case 22
def test_nothing_is_opened_even_by_demuxers_that_would(
    kind, trap, tmp_path, monkeypatch
):  # case 22
    monkeypatch.setattr(source, "FORMATS", (*source.FORMATS, "hls", "concat", "dash", "sdp"))
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(Clip(frames=12, options=CLOSED).encode())
    port = trap.getsockname()[1]
    for target in (f"http://127.0.0.1:{port}/a.ts", str(secret), f"file:{secret}"):
        with pytest.raises(MediaError):
            decode_clip(Source(references(target)[kind].encode()), SamplingOptions())


@pytest.mark.parametrize("data", [b"", b"\x00", b"hello", bytes(4096), b"RIFF\x04\x00\x00\x00WEBP"])
def test_no_media_at_all(data):
    with pytest.raises(MediaError):
        decode_clip(Source(data), SamplingOptions())
    with pytest.raises(MediaError):
        decode_sound(Source(data))


def test_noise_is_refused():
    noise = np.random.default_rng(1).bytes(100_000)
    with pytest.raises(MediaError):
        decode_clip(Source(noise), SamplingOptions())


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"bytes": 1000}, "more than the limit of 1000"),
        ({"seconds": 1.5}, "the file lasts 2 s, more than the limit of 1.5 s"),
        ({"frame_pixels": 3000}, "a frame has 64 x 48 pixels, more than the limit of 3000"),
        ({"streams": 1}, "the file has 2 streams, more than the limit of 1"),
        ({"packets": 50}, "more than 50 packets"),
        ({"output_pixels": 20_000}, "8 frames of 80 x 60 pixels exceed the limit of 20000"),
        ({"sound_seconds": 0.5}, "the sound lasts longer than the limit of 0.5 s"),
        ({"sound_bytes": 100_000}, "the sound takes more than the limit of 100000 bytes"),
        ({"decode_seconds": 1e-9}, "decoding took longer than the 1e-09 s"),
    ],
)
def test_limits(clip, limits, words):
    with pytest.raises(MediaError) as caught:
        decode_clip(Source(clip, Limits(**limits)), SamplingOptions(), lambda *_: (60, 80))
    assert words in caught.value.reason


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_limits_hold_for_animations(kind):
    data = pictures(12, kind, 500, (64, 48))
    for limits, words in (
        ({"seconds": 5.0}, "lasts 6 s"),
        ({"frame_pixels": 3000}, "64 x 48"),
        ({"decode_seconds": 1e-9}, "took longer"),
    ):
        with pytest.raises(MediaError) as caught:
            decode_clip(Source(data, Limits(**limits)), SamplingOptions())
        assert words in caught.value.reason


def test_a_huge_picture_is_refused_from_its_header():
    # 16000 x 16000 claimed by a GIF of a few bytes.
    data = b"GIF89a" + (16000).to_bytes(2, "little") * 2 + b"\x80\x00\x00" + bytes(6)
    data += b"\x2c" + bytes(4) + (16000).to_bytes(2, "little") * 2 + b"\x00\x02\x02\x44\x01\x00;"
    with pytest.raises(MediaError) as caught:
        decode_clip(Source(data), SamplingOptions())
    assert "16000 x 16000" in caught.value.reason


def test_impossible_limits_are_named():
    for value in (0, -1, True, "9", 1.5):
        with pytest.raises(ValueError, match=r"limits\.packets"):
            Limits(packets=value)  # type: ignore[arg-type]
    assert Limits(seconds=10).seconds == 10


def test_cancelling_stops_the_work(clip):
    from video.errors import Cancelled

    budget = Budget(cancelled=lambda: True)
    budget._next_poll = 0.0
    with pytest.raises(Cancelled):
        decode_clip(Source(clip, budget=budget), SamplingOptions())


def test_tracks(clip):
    found = probe(Source(clip))
    assert found.video is not None
    assert (found.video.codec, found.video.width, found.video.height) == ("h264", 64, 48)
    assert found.audio is not None
    assert (found.audio.codec, found.audio.rate) == ("aac", 48000)
    assert found.duration == 2.0


def with_cover(container: str = "ipod") -> bytes:
    """A sound file with a cover picture."""
    import av
    from PIL import Image

    cover = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(cover, "PNG")
    cover.seek(0)
    target = io.BytesIO()
    sound = sound_file(Track(0.5, codec="libmp3lame"), "mp3")
    with (
        av.open(io.BytesIO(sound)) as source,
        av.open(cover) as picture,
        av.open(target, "w", format="mp3") as output,
    ):
        wave = output.add_stream_from_template(source.streams.audio[0])
        art = output.add_stream_from_template(picture.streams.video[0])
        art.disposition = av.stream.Disposition.attached_pic
        for packet in picture.demux():
            if packet.size:
                packet.stream = art
                output.mux(packet)
        for packet in source.demux():
            if packet.dts is not None:
                packet.stream = wave
                output.mux(packet)
    return target.getvalue()


@pytest.mark.parametrize(
    "data",
    [sound_file(Track(0.5)), sound_file(Track(0.5, codec="aac"), "mp4"), with_cover()],
    ids=["wav", "m4a", "mp3 with cover"],
)
def test_sound_without_moving_picture(data):  # case 49
    with pytest.raises(MediaError) as caught:
        decode_clip(Source(data), SamplingOptions())
    assert caught.value.reason == "the file has no video track"
    assert abs(decode_sound(Source(data)).samples.shape[1] - 24000) < 2048
