"""Publicly reported faults of video and sound: which test holds each, and tests for the rest.

The table is checked: every test that it names exists.
"""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from encoders.embedding import Rows, RowsArray, Text
from encoders.video_layout import compose_video
from tests.video.clips import CLOSED, CODECS, SOUND_CODECS, Clip, Track, numbers
from video.clip import Clip as Decoded
from video.decode import decode_clip
from video.sampling import SamplingOptions
from video.source import Source

TESTS = Path(__file__).parent.parent
CASES = {
    # rotation and mirror, also in chunks
    37: ["video/test_orientation.py:test_rotated_clips_come_out_upright",
         "video/test_orientation.py:test_a_phone_held_upright",
         "video/test_orientation.py:test_mirrored_clips",
         "video/test_parts.py:test_parts_are_the_whole"],
    # damage in the middle
    39: ["video/test_decode.py:test_a_damaged_middle_costs_only_its_own_frames",
         "video/test_decode.py:test_lost_frames_are_counted_and_pairs_stay_whole",
         "video/test_parts.py:test_a_part_that_is_lost_has_no_frames",
         "app/test_clips.py:test_damaged_parts_cost_their_own_frames_and_are_not_kept"],
    # variable frame rate
    40: ["video/test_decode.py:test_variable_frame_rate",
         "video/test_public_cases.py:test_timestamps_in_the_prompt_are_the_files_own"],
    # one sampler for indices, stamps and grid
    41: ["video/test_sampling.py:test_every_combination_gives_matching_lengths",
         "video/test_public_cases.py:test_stamps_and_grid_agree_whatever_is_asked"],
    # a codec that takes its process down
    44: ["video/test_deployment.py:test_a_killed_process_costs_one_retry",
         "video/test_deployment.py:test_a_file_that_kills_every_process_is_refused",
         "video/test_decode.py:test_random_bytes_after_the_first_key_frame",
         "video/test_fuzz.py:test_spoiled_files"],
    # memory of long clips, slow consumers
    45: ["video/test_memory.py:test_a_long_clip_with_few_wanted_frames",
         "video/test_memory.py:test_one_endless_gop",
         "app/test_clips.py:test_work_is_bounded_and_stages_overlap"],
    # chunks in parallel are the sequential decode
    46: ["video/test_decode.py:test_chunks_change_nothing",
         "video/test_parts.py:test_parts_are_the_whole"],
    # edit lists, starts, odd sizes, depth, HDR
    47: ["video/test_decode.py:test_an_edit_list_hides_the_start",
         "video/test_decode.py:test_a_start_that_is_not_zero",
         "video/test_decode.py:test_odd_sizes",
         "video/test_picture.py:test_hdr_clips_are_read_as_such",
         "video/test_public_cases.py:test_depths"],
    # sound shorter than the picture, or none
    49: ["video/test_sound.py:test_a_track_shorter_than_the_picture_stays_short",
         "video/test_sound.py:test_a_track_of_zero_samples",
         "video/test_source.py:test_sound_without_moving_picture",
         "app/test_clips.py:test_a_track_that_ends_early_has_no_rows_behind_its_end",
         "video/test_public_cases.py:test_four_seconds_with_one_second_of_sound"],
    # axes, rates and channels
    51: ["video/test_sound.py:test_sample_formats",
         "encoders/audio/test_audio_mel.py:test_swapped_axes_are_refused"],
    52: ["video/test_sound.py:test_rates_and_channels_come_out_as_they_are",
         "encoders/audio/test_audio_resample.py:"
         "test_a_sine_keeps_its_frequency_level_and_duration"],
    # sounds of a few samples, headers that lie
    54: ["video/test_sound.py:test_short_files_and_lying_headers",
         "encoders/test_audio_encoder_replica.py:test_tiny_sounds"],
    # a bad sound harms no other
    56: ["encoders/test_audio_encoder_replica.py:test_bad_sounds_harm_no_other"],
    # encoder delay, sample formats
    57: ["video/test_sound.py:test_coded_sounds_start_where_they_should",
         "video/test_sound.py:test_sample_formats",
         "video/test_sound.py:test_many_planes"],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_table_names_tests_that_exist(case):
    for name in CASES[case]:
        path, _, function = name.partition(":")
        tree = ast.parse((TESTS / path).read_text())
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert function in {node.name for node in tree.body if isinstance(node, kinds)}, name


def compose(clip: Decoded, audio_rows: int = 0):
    """The clip's layout as the prompt has it, with rows of a grid of 2 x 2 patches a pair."""
    pairs = len(clip.frames) // 2
    vision = RowsArray(np.zeros((pairs, 4), np.float32), "float32")
    sound = RowsArray(np.ones((audio_rows, 4), np.float32), "float32") if audio_rows else None
    return compose_video("0" * 64, clip.times, (pairs, 2, 2), vision, sound)


def stamps(clip: Decoded) -> list[str]:
    return [segment.text for segment in compose(clip).layout if isinstance(segment, Text)]


def test_timestamps_in_the_prompt_are_the_files_own():  # case 40
    pts = [0, 40, 80, 1000, 1040, 61_500, 62_000, 125_000]
    clip = Clip(frames=8, pts=pts, time_base=Fraction(1, 1000), options=CLOSED)
    decoded = decode_clip(Source(clip.encode()), SamplingOptions(fps=1000.0))
    assert numbers(decoded.frames) == list(range(8))
    assert stamps(decoded) == ["00:00", "00:00", "00:01", "01:02"]


@pytest.mark.parametrize("seconds", [1, 2, 3, 7, 61])
def test_stamps_and_grid_agree_whatever_is_asked(seconds):  # case 41
    data = Clip(frames=5 * seconds, rate=5, options={"preset": "ultrafast"}).encode()
    for options in (
        {}, {"fps": 0.5}, {"fps": 2}, {"fps": 30}, {"num_frames": 1}, {"num_frames": 7},
        {"num_frames": 500}, {"max_frames": 4}, {"max_frames": 5, "fps": 3}, {"min_frames": 3},
        {"min_frames": 9, "fps": 1}, {"num_frames": 10, "max_frames": 6}, {"times": [0, 0.3, 0.9]},
        {"times": [0.5]}, {"key_frames": True},
    ):  # fmt: skip
        sampling = SamplingOptions().updated(options, limit=3600)
        clip = decode_clip(Source(data), sampling)
        assert len(clip.frames) == len(clip.times)
        assert len(clip.frames) % 2 == 0
        assert (np.diff(clip.times) >= 0).all()
        assert np.allclose(clip.times, np.array(numbers(clip.frames)) / 5, atol=1e-6)
        assert len(stamps(clip)) == len(clip.frames) // 2


@pytest.mark.parametrize("form", ["yuv420p10le", "yuv422p10le", "yuv444p12le", "gray"])
def test_depths(form):  # case 47
    clip = Clip(frames=8, width=63, height=47, codec="ffv1", container="matroska", pix_fmt=form)
    decoded = decode_clip(Source(clip.encode()), SamplingOptions(fps=1000.0))
    assert decoded.frames.shape == (8, 47, 63, 3)
    assert numbers(decoded.frames) == list(range(8))


def test_four_seconds_with_one_second_of_sound():  # case 49
    data = Clip(frames=120, options=CLOSED, track=Track(1.0, 0.5)).encode()
    clip = decode_clip(Source(data), SamplingOptions())
    assert clip.sound is not None
    heard = int(np.ceil(clip.sound.samples.shape[1] / clip.sound.rate * 6.25))
    layout = compose(clip, heard).layout
    sound = [s.count for s in layout if isinstance(s, Rows) and s.modality == "audio"]
    assert sum(sound) == heard
    assert len(sound) < len(clip.frames) // 2  # pairs behind the end have none


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_with_sound(codec):
    """Pictures and click at their times, and the sound dealt to the pairs. GIF has no sound;
    without sound all of these are in test_decode.py."""
    clip = CODECS[codec]
    track = Track(4.0, 2.5, codec=SOUND_CODECS[clip.container])
    data = Clip(**{**vars(clip), "track": track}).encode()
    decoded = decode_clip(Source(data), SamplingOptions(fps=2.0), threads=2)
    assert np.abs(decoded.times * 30 - numbers(decoded.frames)).max() < 0.05
    assert decoded.sound is not None
    at = np.abs(decoded.sound.samples[0]).argmax() / decoded.sound.rate
    assert abs(at - 2.5) < (0.03 if clip.container == "avi" else 0.005)  # AVI: mp3's delay stays
    counts = [s.count for s in compose(decoded, 26).layout if isinstance(s, Rows)]
    assert counts[0::2] == [1, 1, 1, 1]
    assert sum(counts[1::2]) == 26
