"""The family's sampling rule. Oracle: the golden values of the MiMo-V2 reference, section 12."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
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
        ({"fps": 1.0, "num_frames": 4}, "fps or num_frames, not both"),
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
