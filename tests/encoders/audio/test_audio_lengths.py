"""Counts before encoding: golden values, the closed form, limits."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoders.audio.lengths import SoundLengths, check_sound, resampled_length
from encoders.errors import MediaError

LENGTHS = SoundLengths()


@pytest.mark.parametrize(
    ("seconds", "frames", "tokens"),
    [(1, 101, 7), (10, 1_001, 63), (60, 6_001, 376), (300, 30_001, 1_876)],
)
def test_golden_counts(seconds: int, frames: int, tokens: int) -> None:
    for rate in (8_000, 24_000, 44_100, 48_000):
        assert LENGTHS.mel_frames(seconds * rate, rate) == frames
        assert LENGTHS.tokens(seconds * rate, rate) == tokens


def test_tokens_are_a_sixteenth_of_the_frames_rounded_up() -> None:
    for frames in range(1, 20_001):
        assert LENGTHS.tokens_of_mel(frames) == (frames + 15) // 16


def test_segments_are_full_ones_and_a_remainder() -> None:
    assert LENGTHS.segments(6_000) == [6_000]
    assert LENGTHS.segments(6_001) == [6_000, 1]
    assert LENGTHS.segments(12_034) == [6_000, 6_000, 34]


@given(st.integers(0, 10**10), st.integers(1_000, 768_000))
def test_resampled_length_is_the_exact_ceiling(n: int, rate: int) -> None:  # case 52
    length = resampled_length(n, rate, 24_000)
    assert (length - 1) * rate < n * 24_000 <= length * rate
    assert abs(length - n * 24_000 / rate) < 1


@pytest.mark.parametrize("samples", [0, 1, 2, 10, 159, 480])
def test_very_short_sounds_count_one_token(samples: int) -> None:  # case 54
    assert LENGTHS.samples(samples, 24_000) == 481
    assert LENGTHS.tokens(samples, 24_000) == 1


@pytest.mark.parametrize(
    ("channels", "samples", "rate", "reason"),
    [
        (1, 10, 0, "sampling rate 0 Hz"),
        (1, 10, -8_000, "sampling rate"),
        (1, 10, 999, "sampling rate 999 Hz is not in 1000..768000"),
        (1, 10, 1_000_000, "sampling rate"),
        (0, 10, 8_000, "0 sound channels"),
        (480, 2, 48_000, r"480 sound channels, allowed 1..64 \(axes: \[channels, samples\]\)"),
        (1, 80_001, 8_000, "longer than the limit of 10 s"),
    ],
)
def test_refused_sounds(channels: int, samples: int, rate: int, reason: str) -> None:
    with pytest.raises(MediaError, match=reason):
        check_sound(channels, samples, rate, max_seconds=10)


def test_limits_themselves_are_accepted() -> None:
    check_sound(64, 80_000, 8_000, max_seconds=10)
    check_sound(1, 0, 768_000, max_seconds=10)


def test_lengths_and_options_need_no_torch() -> None:
    code = (
        "import sys, encoders.audio, encoders.audio.lengths, encoders.audio.options;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("segment", [6_000, 100, 26, 7])
@pytest.mark.parametrize("most", [1, 100, 7_000, 24_000])
def test_parts_give_the_rows_of_the_whole(segment: int, most: int) -> None:
    lengths = SoundLengths(segment=segment)
    for frames in (1, 99, 6_000, 6_001, 30_011):
        parts = lengths.parts(frames, most)
        assert sum(parts) == frames
        assert sum(map(lengths.tokens_of_mel, parts)) == lengths.tokens_of_mel(frames)
        # Every part but the last ends where a group of codes ends.
        for part in parts[:-1]:
            assert part % segment == 0
            assert sum(map(lengths.codes, lengths.segments(part))) % lengths.group == 0
            assert part <= max(most, segment * lengths.group)
