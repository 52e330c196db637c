"""The index from the sample tables is the one that reading through gives, or there is none."""

from __future__ import annotations

import dataclasses
import io
import tempfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.video.clips import CLOSED, OPEN, Clip, Track, damage, remux
from video import mp4_index
from video.index import PacketIndex
from video.mp4_index import tabled_index
from video.packets import _read_through, demux, read_index
from video.source import ByteFile, Source


def moov_first(data: bytes) -> bytes:
    """The same packets behind their tables; libav needs a file on disk for that."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as target:
        with (
            av.open(io.BytesIO(data)) as source,
            av.open(target.name, "w", options={"movflags": "faststart"}) as output,
        ):
            streams = [output.add_stream_from_template(stream) for stream in source.streams]
            for packet in source.demux():
                if packet.size:
                    packet.stream = streams[packet.stream_index]
                    output.mux(packet)
        return Path(target.name).read_bytes()


BASE = Clip(90, options=CLOSED, track=Track(2.0))
FILES = {
    "closed": BASE.encode(),
    "open": Clip(90, options=OPEN).encode(),
    "moov first": moov_first(BASE.encode()),
    "negative offsets": dataclasses.replace(
        BASE, muxing={"movflags": "negative_cts_offsets"}
    ).encode(),
    "mov": dataclasses.replace(BASE, container="mov").encode(),
    "no b-frames": Clip(90, options={"bf": "0", "g": "10", "preset": "veryfast"}).encode(),
    "edit list": remux(BASE.encode(), shift=Fraction(-4, 30)),
    "cut whole GOPs": remux(BASE.encode(), shift=Fraction(-18, 30)),
    "late start": remux(BASE.encode(), shift=10),
    "variable": Clip(
        90, pts=[n * n for n in range(90)], time_base=Fraction(1, 1000), options=CLOSED
    ).encode(),
    "hevc": Clip(
        90, 96, 80, codec="libx265", options={"preset": "ultrafast", "x265-params": "keyint=12"}
    ).encode(),
    "mpeg4": Clip(90, codec="mpeg4", options={"bf": "2", "g": "12"}).encode(),
}


@pytest.fixture(autouse=True)
def for_short_clips(monkeypatch):
    monkeypatch.setattr(mp4_index, "MIN_PACKETS", 10)
    monkeypatch.setattr(mp4_index, "CHECKED", 8)


def tabled(source: Source) -> PacketIndex | None:
    return tabled_index(source, 0, lambda container, stream: demux(container, stream, source))


def same(a: PacketIndex, b: PacketIndex) -> bool:
    names = [field.name for field in dataclasses.fields(a)]
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


@pytest.mark.parametrize("name", FILES)
def test_it_is_the_one_of_reading_through(name):
    source = Source(FILES[name])
    found = tabled(source)
    assert found is not None
    assert same(found, _read_through(source, 0))
    assert same(found, read_index(source, 0))


def test_damaged_packets_change_nothing():  # case 39
    data = damage(FILES["closed"], 0.4, 64)
    found = tabled(Source(data))
    assert found is not None
    assert same(found, _read_through(Source(data), 0))


@pytest.mark.parametrize(
    "data",
    [
        Clip(90, options=CLOSED, muxing={"movflags": "frag_keyframe+empty_moov"}).encode(),
        Clip(90, options=CLOSED, container="matroska").encode(),
        Clip(90, options=CLOSED, container="mpegts").encode(),
        FILES["moov first"][:-3000],
        Clip(90, options=CLOSED | {"g": "250"}).encode(),  # would be read through to check it
    ],
    ids=["fragments", "matroska", "mpegts", "torn", "one key"],
)
def test_other_files_are_read_through(data):
    assert tabled(Source(data)) is None
    assert same(read_index(Source(data), 0), _read_through(Source(data), 0))


@pytest.mark.parametrize("table", [b"ctts", b"stts", b"stsz", b"stco", b"stsc", b"tkhd", b"stbl"])
def test_spoiled_tables_never_differ_from_reading_through(table):
    whole = FILES["moov first"]
    rng = np.random.default_rng(0)
    at = whole.index(table)
    for _ in range(60):
        data = bytearray(whole)
        place = at + int(rng.integers(0, 60))
        data[place] = int(rng.integers(0, 256))
        try:
            source = Source(bytes(data))
            plain = _read_through(source, 0)
            found = tabled(source)
        except ValueError:  # refused as a file
            continue
        if found is not None and len(plain):
            # Between the checked ends the file itself may lie.
            for name in ("pts", "dts", "position", "size"):
                assert np.array_equal(getattr(found, name)[:8], getattr(plain, name)[:8])


def test_a_long_file_is_not_read(monkeypatch):
    clip = Clip(60, 160, 120, codec="mjpeg", container="matroska", pix_fmt="yuvj420p")
    data = remux(clip.encode(), "mp4", loops=20)
    read = 0
    plain = ByteFile.read

    def counting(self, size=-1):
        nonlocal read
        block = plain(self, size)
        read += len(block)
        return block

    monkeypatch.setattr(ByteFile, "read", counting)
    assert len(read_index(Source(data), 0)) == 1200
    assert read < len(data) / 3
