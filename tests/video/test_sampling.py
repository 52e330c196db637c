"""The family's sampling rule. Oracle: the golden values of the MiMo-V2 reference, section 12."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from video.errors import MediaError
from video.sampling import SamplingOptions, choose, sample
from video.timeline import from_durations


def even_clip(frames: int, rate: int = 30):
    return from_durations([1] * frames, Fraction(1, rate))


@pytest.mark.parametrize(
    ("frames", "count", "first", "last"),
    [
        (1800, 60, [0, 30, 60, 91, 121], 1799),
        (90, 8, [0, 12, 25, 38, 50, 63, 76, 89], 89),
        (108_000, 3600, [0, 30, 60, 90, 120], 107_999),
        (300, 10, [0, 33, 66, 99, 132, 166, 199, 232, 265, 299], 299),
    ],
)
def test_golden_indices(frames, count, first, last):
    sampling = sample(even_clip(frames), SamplingOptions())
    assert len(sampling.indices) == count
    assert sampling.indices[: len(first)].tolist() == first
    assert sampling.indices[-1] == last
    assert sampling.indices.dtype == np.int64


def test_golden_times():
    sampling = sample(even_clip(300), SamplingOptions())
    pairs = sampling.times[::2]
    assert pairs.round(3).tolist() == [0, 2.2, 4.4, 6.633, 8.833]
    assert round(sampling.sampled_fps, 3) == 0.909
    assert round(float(sampling.times[-1] + 1 / sampling.sampled_fps), 3) == 11.067


@pytest.mark.parametrize("seconds", [1, 2, 3, 7, 61])  # case 41
@pytest.mark.parametrize("min_frames", [None, 1, 7])
@pytest.mark.parametrize("max_frames", [None, 2, 5, 16])
@pytest.mark.parametrize("rate", [{}, {"fps": 0.5}, {"fps": 2}, {"num_frames": 10}])
def test_every_combination_gives_matching_lengths(seconds, min_frames, max_frames, rate):
    given = {"min_frames": min_frames, "max_frames": max_frames, **rate}
    options = SamplingOptions().updated(given, limit=3600)
    sampling = sample(even_clip(seconds * 10, 10), options)
    count = len(sampling.indices)
    assert count == len(sampling.times)
    assert count % 2 == 0
    assert 2 <= count <= min(seconds * 10, max_frames or 3600)
    assert (np.diff(sampling.indices) > 0).all()
    if max_frames is None:
        asked = 10 if "num_frames" in rate else seconds * rate.get("fps", 1.0)
        least = 0 if "num_frames" in rate else (min_frames or 8)
        assert count == min(int(max(asked, least + least % 2)) // 2 * 2, seconds * 10)


@settings(deadline=None)
@given(
    total=st.integers(1, 5000),
    native=st.floats(1, 120),
    fps=st.floats(0.01, 60),
    most=st.integers(2, 4000),
    least=st.integers(1, 4000),
)
def test_any_clip(total, native, fps, most, least):
    options = SamplingOptions(fps=fps, min_frames=least, max_frames=most)
    indices = choose(total, native, options)
    assert len(indices) % 2 == 0
    assert 2 <= len(indices) <= max(most, 2)
    assert indices[0] == 0
    assert indices[-1] == total - 1
    assert total == 1 or (np.diff(indices) > 0).all()


def test_one_frame_counts_twice():
    sampling = sample(even_clip(1), SamplingOptions())
    assert sampling.indices.tolist() == [0, 0]
    assert sampling.times.tolist() == [0.0, 0.0]
    assert sampling.sampled_fps == 1.0


def test_a_length_rounded_by_the_container_loses_no_pair():
    # WebM rounds 24 fps to whole milliseconds: 240 frames may seem to last 9.999 s.
    assert len(choose(240, 240 / 9.999, SamplingOptions(), exact=False)) == 10
    assert len(choose(240, 240 / 9.999, SamplingOptions(), exact=True)) == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fps": 0}, "fps must be between 0.001 and 1000"),
        ({"fps": -1.0}, "fps must be between"),
        ({"fps": float("nan")}, "fps must be between"),
        ({"fps": float("inf")}, "fps must be between"),
        ({"fps": 10**400}, "fps must be between"),
        ({"fps": "2"}, "fps must be a number"),
        ({"fps": True}, "fps must be a number"),
        ({"num_frames": 2.5}, "num_frames must be a whole number"),
        ({"num_frames": 0}, "num_frames must be between"),
        ({"max_frames": 1}, "max_frames must be between 2"),
        ({"min_frames": 0}, "min_frames must be between"),
        ({"max_frames": 700}, "max_frames = 700 is more than the limit of 600"),
        ({"num_frames": 601}, "num_frames = 601 is more than the limit of 600"),
        ({"fps": 1.0, "num_frames": 4}, "one of fps, num_frames and times"),
        ({"frames": 4}, "unknown sampling option 'frames'"),
        ({"x" * 5000: 4}, "unknown sampling option"),
    ],
)
def test_refused_options(options, words):
    with pytest.raises(MediaError) as caught:
        SamplingOptions().updated(options, limit=600)
    assert words in caught.value.reason
    assert len(caught.value.reason) < 200


def test_a_request_replaces_the_default_way_of_counting():
    defaults = SamplingOptions(fps=2.0)
    assert defaults.updated({"num_frames": 6}, 3600).fps is None
    assert defaults.updated({"fps": None}, 3600).fps == 2.0
    assert defaults.updated({"max_frames": 16}, 3600) == SamplingOptions(fps=2.0, max_frames=16)
    assert SamplingOptions().updated({}, limit=600).max_frames == 600


def keyed_clip(frames: int, every: int, rate: int = 30):
    clock = even_clip(frames, rate)
    return dataclasses.replace(clock, key_frames=np.arange(0, frames, every))


def test_explicit_times_take_the_frames_shown_then():
    options = SamplingOptions().updated({"times": [0, 0.99, 1.0, 1.01, 500]}, limit=3600)
    sampling = sample(even_clip(300), options)
    assert sampling.indices.tolist() == [0, 29, 30, 299]
    assert sampling.times.round(4).tolist() == [0, 0.9667, 1.0, 9.9667]
    odd = sample(even_clip(300), SamplingOptions(times=(1.0, 2.0, 3.0)))
    assert odd.indices.tolist() == [30, 60, 90, 90]
    assert odd.sampled_fps == 1.0
    few = sample(even_clip(300), SamplingOptions(times=(1.0, 2.0, 3.0), max_frames=2))
    assert few.indices.tolist() == [30, 60]


@given(
    frames=st.integers(1, 200),
    times=st.lists(st.floats(0, 10, allow_nan=False), min_size=1, max_size=20),
)
def test_explicit_times_against_a_plain_search(frames, times):
    clock = even_clip(frames, 25)
    found = sample(clock, SamplingOptions(times=tuple(sorted(times)))).indices.tolist()
    shown = set()
    for time in times:
        began = [i for i, start in enumerate(clock.seconds) if start <= time + 1e-6]
        shown.add(began[-1])
    assert sorted(set(found)) == sorted(shown)
    assert len(found) == len(shown) + len(shown) % 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"times": []}, "list of seconds"),
        ({"times": "12"}, "list of seconds"),
        ({"times": 1.0}, "list of seconds"),
        ({"times": [1, "2"]}, "each of times must be a number"),
        ({"times": [-1.0]}, "each of times must be between"),
        ({"times": [float("nan")]}, "each of times must be between"),
        ({"times": [2.0, 1.0]}, "ascending"),
        ({"times": [0.0] * 5}, "5 times are more than the limit of 4"),
        ({"times": [1.0], "fps": 1.0}, "one of fps, num_frames and times"),
        ({"key_frames": 1}, "key_frames must be true or false"),
    ],
)
def test_times_and_modes_are_checked(given, words):
    with pytest.raises(MediaError, match=words):
        SamplingOptions().updated(given, limit=4)


def test_times_replace_default_rules():
    assert SamplingOptions(fps=2.0).updated({"times": [1.0, 2.0]}, 10).fps is None
    assert SamplingOptions(times=(1.0,)).updated({"fps": 2.0}, 10).times is None


def test_key_frames_nearest_to_the_chosen_ones():
    clock = keyed_clip(1000, 250)  # key frames at 0, 8.33, 16.67 and 25 s
    sampling = sample(clock, SamplingOptions(key_frames=True))
    assert sampling.indices.tolist() == [0, 250, 500, 750]
    assert sampling.times.round(2).tolist() == [0, 8.33, 16.67, 25.0]
    one = sample(clock, SamplingOptions(times=(16.0,), key_frames=True))
    assert one.indices.tolist() == [500, 500]
    middle = sample(clock, SamplingOptions(times=(125 / 30,), key_frames=True))
    assert middle.indices.tolist() == [0, 0]  # the earlier of two equally near
    dense = sample(keyed_clip(300, 1), SamplingOptions(key_frames=True))
    assert dense.indices.tolist() == sample(even_clip(300), SamplingOptions()).indices.tolist()
    without = sample(even_clip(300), SamplingOptions(key_frames=True))
    assert without.indices.tolist() == dense.indices.tolist()


@example(frames=53, every=2, count=5)  # 41 is as near to 40 as to 42, but for rounding
@given(frames=st.integers(1, 300), every=st.integers(1, 90), count=st.integers(1, 40))
def test_key_frames_against_a_plain_search(frames, every, count):
    clock = keyed_clip(frames, every)
    exact = sample(clock, SamplingOptions(num_frames=count))
    found = sample(clock, SamplingOptions(num_frames=count, key_frames=True)).indices.tolist()
    near = {
        min(clock.key_frames.tolist(), key=lambda key: (abs(key - index), key))
        for index in exact.indices.tolist()
    }
    assert sorted(set(found)) == sorted(near)
    assert len(found) % 2 == 0
