"""Packets that nothing depends on are known, and only these are left out."""

from __future__ import annotations

import numpy as np
import pytest

from tests.video.clips import CLOSED, OPEN, Clip
from video.decoder import RangeDecoder
from video.disposable import disposable_rule
from video.head import open_video
from video.packets import demux
from video.probe import probe
from video.source import Source

HEVC = {"preset": "ultrafast", "x265-params": "keyint=12:scenecut=0:log-level=none:bframes=3"}
LAYERED = {**HEVC, "x265-params": HEVC["x265-params"] + ":temporal-layers=2"}
STREAMS = {
    "h264": Clip(options=CLOSED),
    "h264 open gop": Clip(options=OPEN),
    "h264 start codes": Clip(options=OPEN, container="mpegts"),
    "h264 slices": Clip(options=CLOSED | {"slices": "4"}, height=96),
    "hevc": Clip(codec="libx265", options=HEVC, width=96, height=80),
    "hevc start codes": Clip(
        codec="libx265", options=HEVC, width=96, height=80, container="mpegts"
    ),
    "hevc layers": Clip(codec="libx265", options=LAYERED, width=96, height=80),
}


@pytest.mark.parametrize("name", STREAMS)
def test_frames_without_them_are_the_same(name):
    source = Source(STREAMS[name].encode())
    video = open_video(source, probe(source))
    last = len(video.index) - 1
    with RangeDecoder(source, video.track.stream, video.index, video.timeline.reorder) as decoder:
        whole = {f.pts: f.to_ndarray(format="rgb24") for f in decoder.frames(0, last)}
        kept = {f.pts: f.to_ndarray(format="rgb24") for f in decoder.frames(0, last, ())}
        times = sorted(whole)[::7]
        some = {f.pts: f.to_ndarray(format="rgb24") for f in decoder.frames(0, last, times)}
    assert len(whole) == 60
    assert 12 <= len(kept) <= 40  # about half are B-frames that nothing depends on
    assert set(some) == set(kept) | set(times)
    for found in (kept, some):
        assert all(np.array_equal(frame, whole[time]) for time, frame in found.items())


def packets(clip: Clip) -> tuple[str, bytes | None, list[bytes]]:
    source = Source(clip.encode())
    with source.open() as container:
        stream = container.streams.video[0]
        codec = stream.codec_context
        return codec.name, codec.extradata, [bytes(p) for p in demux(container, stream, source)]


def test_rules():
    assert disposable_rule("vp9", None) is None
    assert disposable_rule("hevc", None) is None  # says nothing of its sub-layers
    name, extradata, coded = packets(STREAMS["h264"])
    rule = disposable_rule(name, extradata)
    assert rule is not None
    found = [rule(memoryview(packet)) for packet in coded]
    assert not found[0]
    assert 20 <= sum(found) <= 45
    droppable = coded[found.index(True)]
    reference = coded[0]
    assert not rule(memoryview(droppable + reference))  # all slices must agree
    assert not rule(memoryview(b""))
    assert not rule(memoryview(b"\0\0\0\2\6\5"))  # no slice
    parameters = b"\0\0\0\2" + bytes([0x68, 0])  # would be missed later
    assert not rule(memoryview(parameters + droppable))
    assert rule(memoryview(droppable[:40])) == rule(memoryview(droppable))


def test_a_predicted_stream_without_b_frames_keeps_everything():
    name, extradata, coded = packets(Clip(options={"bf": "0", "g": "30", "preset": "veryfast"}))
    rule = disposable_rule(name, extradata)
    assert rule is not None
    assert not any(rule(memoryview(packet)) for packet in coded)


def test_temporal_layers_are_read_from_the_stream():
    name, extradata, coded = packets(STREAMS["hevc layers"])
    rule = disposable_rule(name, extradata)
    assert rule is not None
    found = [rule(memoryview(packet)) for packet in coded]
    highest = [max((nal & 7) for nal in _second_bytes(packet)) for packet in coded]
    assert any(found)
    assert {h for f, h in zip(found, highest, strict=True) if f} == {max(highest)}


def _second_bytes(packet: bytes) -> list[int]:
    at, found = 0, []
    while at + 6 <= len(packet):
        if packet[at + 4] >> 1 & 63 < 32:
            found.append(packet[at + 5])
        at += 4 + int.from_bytes(packet[at : at + 4], "big")
    return found
