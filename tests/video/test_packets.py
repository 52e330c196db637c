"""Reading packets by number, with and without seeking."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from tests.video.clips import CLOSED, OPEN, Clip, Track, numbers, remux
from video import packets
from video.decode import decode_clip
from video.head import open_video
from video.packets import PacketReader, read_index
from video.probe import probe
from video.sampling import SamplingOptions
from video.source import ByteFile, Source

FILES = {
    "mp4": Clip(options=OPEN, track=Track(2.0)).encode(),
    "fragmented": Clip(
        options=CLOSED, track=Track(2.0), muxing={"movflags": "frag_keyframe+empty_moov"}
    ).encode(),
    "edit list": remux(Clip(options=CLOSED).encode(), shift=Fraction(-4, 30)),
    "matroska": Clip(options=OPEN, container="matroska", track=Track(2.0)).encode(),
    "mpegts": Clip(options=OPEN, container="mpegts", track=Track(2.0)).encode(),
    "avi": Clip(codec="mjpeg", container="avi", pix_fmt="yuvj420p").encode(),
}


@pytest.fixture(params=FILES)
def source(request) -> Source:
    return Source(FILES[request.param])


def stream_of(source: Source) -> int:
    track = probe(source).video
    assert track is not None
    return track.stream


@pytest.mark.parametrize("seek_bytes", [-1, 0, 1 << 20])
def test_ranges_are_the_same_in_any_order(source, seek_bytes, monkeypatch):
    monkeypatch.setattr(packets, "SEEK_BYTES", seek_bytes)
    stream = stream_of(source)
    index = read_index(source, stream)
    with source.open() as container:
        whole = [bytes(p) for p in packets.demux(container, container.streams[stream], source)]
    assert len(whole) == len(index)
    keys = np.flatnonzero(index.key).tolist()
    order = [keys[-1], keys[0], keys[len(keys) // 2], *keys]
    with PacketReader(source, stream, index) as reader:
        for key in order:
            last = min(key + 5, len(whole) - 1)
            found = list(reader.read(key, last))
            assert [number for number, _ in found] == list(range(key, last + 1))
            assert [bytes(packet) for _, packet in found] == whole[key : last + 1]


def test_a_wrong_index_costs_time_but_no_frame(source, monkeypatch):
    monkeypatch.setattr(packets, "SEEK_BYTES", -1)
    stream = stream_of(source)
    index = read_index(source, stream)
    lying = dataclasses.replace(index, position=index.position + 7, pts=index.pts + 1)
    with PacketReader(source, stream, index) as reader:
        honest = [bytes(p) for _, p in reader.read(len(index) // 2, len(index) - 1)]
    with PacketReader(source, stream, lying) as reader:
        assert [bytes(p) for _, p in reader.read(len(index) // 2, len(index) - 1)] == honest


@pytest.mark.parametrize("chunks", [1, 4])
def test_seeking_changes_no_frame(source, chunks, monkeypatch):
    options = SamplingOptions(num_frames=6)
    plain = decode_clip(source, options, chunks=chunks)
    monkeypatch.setattr(packets, "SEEK_BYTES", -1)
    sought = decode_clip(source, options, chunks=chunks)
    assert np.array_equal(plain.frames, sought.frames)
    assert -1 not in numbers(plain.frames)


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_far_frames_are_reached_without_reading_what_lies_between(container, monkeypatch):
    clip = Clip(60, 160, 120, codec="mjpeg", container="matroska", pix_fmt="yuvj420p")
    data = remux(clip.encode(), container, loops=20)
    source = Source(data)
    video = open_video(source, probe(source))
    assert len(video.timeline) == 1200
    read = 0
    plain = ByteFile.read

    def counting(self, size=-1):
        nonlocal read
        block = plain(self, size)
        read += len(block)
        return block

    monkeypatch.setattr(ByteFile, "read", counting)
    with video.decoder() as decoder:
        (frame,) = decoder.frames(1100, 1100)
    assert numbers(frame.to_ndarray(format="rgb24")[None]) == [20]
    assert read < len(data) / 4
