"""Clocks from packet indices, without any file."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from video.index import MISSING, PacketIndex
from video.plan import plan_chunks, plan_runs
from video.timeline import from_count, from_durations, from_timestamps


def index(pts, keys=(0,), dts=None, discard=(), duration=1) -> PacketIndex:
    count = len(pts)
    places = np.arange(count)
    return PacketIndex(
        pts=np.array([MISSING if p is None else p for p in pts], np.int64),
        dts=np.array(places if dts is None else dts, np.int64),
        duration=np.full(count, duration, np.int64),
        position=places * 100,
        size=np.full(count, 100, np.int64),
        key=np.isin(places, keys),
        discard=np.isin(places, discard),
    )


def timeline(packets, codec="h264", rate=None, base=Fraction(1, 10)):
    return from_timestamps(packets, codec, base, rate)


def test_frames_are_in_order_of_presentation():
    clock = timeline(index([5, 9, 7, 6, 8]), rate=10.0)  # case 47: starts at 0.5 s
    assert clock.seconds.round(6).tolist() == [0, 0.1, 0.2, 0.3, 0.4]
    assert clock.start == Fraction(1, 2)
    assert clock.duration == 0.5
    assert clock.rate == 10.0
    assert clock.reorder == 2
    # frame 1 (pts 6) is decoded fourth and needs everything before it
    assert clock.last_packet.tolist() == [0, 3, 3, 4, 4]


def test_variable_rate_keeps_true_times():  # case 40
    clock = timeline(index([0, 40, 80, 1000, 1040]), base=Fraction(1, 1000), rate=4.8)
    assert clock.seconds.tolist() == [0, 0.04, 0.08, 1.0, 1.04]
    assert clock.steady_rate is None


def test_a_rate_is_steady_within_one_tick():
    milliseconds = [round(n * 1000 / 30) for n in range(300)]
    clock = timeline(index(milliseconds, duration=33), base=Fraction(1, 1000), rate=30.0)
    assert clock.rate == 30.0
    moved = [*milliseconds[:150], *(m + 4 for m in milliseconds[150:])]
    assert timeline(index(moved), base=Fraction(1, 1000), rate=30.0).steady_rate is None


def test_frames_before_an_open_key_frame_start_one_key_earlier():
    #            I0 P3 B1 B2 I6 B4 B5 P7
    clock = timeline(index([0, 3, 1, 2, 6, 4, 5, 7], keys=(0, 4)))
    assert clock.first_packet.tolist() == [0, 0, 0, 0, 0, 0, 4, 4]
    assert clock.last_packet.tolist() == [0, 2, 3, 3, 5, 6, 6, 7]


def test_cut_and_discarded_frames_are_not_presented():  # case 47
    # an edit list starts at 2; leading frames of a cut open GOP have no reference
    assert timeline(index([0, 1, 2, 3], discard=(0, 1))).ticks.tolist() == [2, 3]
    assert timeline(index([5, 3, 4, 6])).ticks.tolist() == [5, 6]
    # a stream joined in mid-GOP starts at its first key packet
    assert timeline(index([0, 1, 2, 3], keys=(2,))).ticks.tolist() == [2, 3]


def test_equal_timestamps_are_one_frame():
    assert timeline(index([0, 1, 1, 2])).ticks.tolist() == [0, 1, 2]


def test_key_flags_of_composing_codecs_are_not_trusted():
    clock = timeline(index([0, 1, 2, 3], keys=(0, 2)), codec="gif")
    assert clock.first_packet.tolist() == [0, 0, 0, 0]


def test_clocks_that_cannot_be_relied_on():
    assert timeline(index([None] * 4)) is None
    assert timeline(index([0, None, 1, None])) is None
    assert timeline(index([10, 11, 0, 1], keys=(0, 2))) is None  # the clock jumps back
    assert timeline(index([])) is None
    assert len(timeline(index([*range(20), None, 21]))) == 21  # one spoiled packet


def test_counted_frames_use_decode_times_or_the_rate():
    base = Fraction(1, 24)
    clock = from_count(4, index([None] * 4, dts=[3, 4, 5, 6]), base, 24.0)
    assert (clock.seconds * 24).round(6).tolist() == [0, 1, 2, 3]
    assert clock.start == Fraction(1, 8)
    assert clock.rate == 24.0
    clock = from_count(4, index([None] * 4, dts=[3, 4, 5, 9]), base, 24.0)  # dropped frames
    assert (clock.seconds * 24).round(6).tolist() == [0, 1, 2, 6]
    clock = from_count(2, index([None] * 4), base, 30000 / 1001)  # two packets per frame
    assert clock.seconds.round(6).tolist() == [0, 0.033367]
    assert clock.last_packet.tolist() == [3, 3]
    assert clock.counted


def test_pictures_with_their_own_durations():
    clock = from_durations([100, 300, 100], Fraction(1, 1000))
    assert clock.seconds.tolist() == [0, 0.1, 0.4]
    assert clock.duration == 0.5
    assert clock.steady_rate is None
    assert from_durations([40] * 5, Fraction(1, 1000)).rate == 25.0


def test_runs_follow_the_wanted_frames_and_chunks_share_the_work():
    packets = index(list(range(40)), keys=range(0, 40, 10))
    clock = timeline(packets)
    runs = plan_runs(clock, np.array([1, 2, 15, 39]))
    assert [(r.first_packet, r.last_packet, r.frames, r.slots) for r in runs] == [
        (0, 2, (1, 2), (0, 1)),
        (10, 15, (15,), (2,)),
        (30, 39, (39,), (3,)),
    ]
    for count in range(1, 9):
        chunks = plan_chunks(runs, packets, count)
        assert [run for chunk in chunks for run in chunk.runs] == runs
        assert len(chunks) <= count
    two = plan_chunks(runs, packets, 2)
    assert [len(chunk.runs) for chunk in two] == [2, 1]
