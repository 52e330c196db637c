"""Layout of clips, with the golden example of mimo-v2.md section 12."""

from __future__ import annotations

import numpy as np
import pytest

from encoders.embedding import (
    Embedding,
    Rows,
    RowsArray,
    Segment,
    Special,
    Text,
    modality_rows,
)
from encoders.video_layout import compose_video, format_timestamp, plan_pairs, video_layout

GOLDEN_TIMES = [index / 30 for index in (0, 33, 66, 99, 132, 166, 199, 232, 265, 299)]
START, END = Special("<|vision_start|>"), Special("<|vision_end|>")
SOUND, SILENCE = Special("<|mimo_audio_start|>"), Special("<|mimo_audio_end|>")


def texts(layout: tuple[Segment, ...]) -> list[str]:
    return [segment.text for segment in layout if isinstance(segment, Text)]


def counts(layout: tuple[Segment, ...], modality: str) -> list[int]:
    return [s.count for s in layout if isinstance(s, Rows) and s.modality == modality]


def test_golden_clip_with_sound() -> None:
    pairs = plan_pairs(GOLDEN_TIMES, 63)
    assert [round(pair.time, 3) for pair in pairs] == [0, 2.2, 4.4, 6.633, 8.833]
    assert [pair.audio_start for pair in pairs] == [0, 13, 27, 41, 55]
    assert [pair.audio_count for pair in pairs] == [13, 14, 14, 14, 8]
    assert plan_pairs(GOLDEN_TIMES, 1000)[-1].audio_stop == 69
    layout = video_layout(GOLDEN_TIMES, (5, 4, 6), 63)
    assert texts(layout) == ["00:00", "00:02", "00:04", "00:06", "00:08"]
    assert layout[:8] == (
        Special("<|mimo_video_start|>"),
        Text("00:00"),
        START,
        Rows("video", 6),
        END,
        SOUND,
        Rows("audio", 13),
        SILENCE,
    )
    assert layout[-1] == Special("<|mimo_video_end|>")
    assert len(layout) == 2 + 5 * 7


def test_silent_clip() -> None:
    layout = video_layout([0, 1, 2], (2, 4, 4), interleave=-1)
    assert layout == (
        Special("<|mimo_video_start|>"),
        *(Text("00:00"), START, Rows("video", 4), END),
        *(Text("00:02"), START, Rows("video", 4), END),
        Special("<|mimo_video_end|>"),
    )


@pytest.mark.parametrize(
    ("interleave", "stamps", "shares"),
    [
        (-1, ["00:00"], [63]),
        (4, ["00:00", "00:04", "00:08"], [27, 28, 8]),
        (5, ["00:00", "00:06"], [41, 22]),
        (100, ["00:00"], [63]),
    ],
)
def test_interleave(interleave: int, stamps: list[str], shares: list[int]) -> None:
    layout = video_layout(GOLDEN_TIMES, (5, 4, 6), 63, interleave=interleave)
    assert texts(layout) == stamps
    assert counts(layout, "audio") == shares
    assert counts(layout, "video") == [6] * 5


@pytest.mark.parametrize(
    ("audio_rows", "shares"), [(7, [7]), (13, [13]), (14, [13, 1]), (28, [13, 14, 1]), (0, [])]
)
def test_sound_shorter_than_the_picture(audio_rows: int, shares: list[int]) -> None:
    # case 49: pairs past the end of the sound have no audio span
    layout = video_layout(GOLDEN_TIMES, (5, 4, 6), audio_rows)
    assert counts(layout, "audio") == shares
    assert len(counts(layout, "video")) == 5
    assert layout.count(SOUND) == layout.count(SILENCE) == len(shares)


def test_odd_frames_repeat_the_last_one() -> None:
    pairs = plan_pairs([0.0, 0.5, 1.0], 100)
    # end = last sampled time, before the repetition, plus the first gap
    assert [(p.time, p.audio_start, p.audio_stop) for p in pairs] == [(0.0, 0, 6), (1.0, 6, 9)]
    assert plan_pairs([0.0], 100)[0].audio_stop == 6
    assert plan_pairs([3.0, 3.0], 100)[0].audio_stop == 25


def test_true_times_of_a_variable_rate() -> None:
    # case 40
    layout = video_layout([0, 0.04, 0.08, 1.0, 61.04, 3700.5], (3, 2, 2))
    assert texts(layout) == ["00:00", "00:00", "01:01"]
    assert format_timestamp(59.999) == "00:59"
    assert format_timestamp(3700.5) == "61:40"
    assert format_timestamp(6000) == "100:00"


def rows(count: int, start: int = 0) -> RowsArray:
    return RowsArray(np.arange(start, start + count, dtype=np.float32)[:, None], "float32")


def order(embedding: Embedding) -> list[int]:
    return embedding.rows.data[:, 0].astype(int).tolist()


def test_compose_keeps_each_modality_in_one_piece() -> None:
    times = [0.0, 1.0, 2.0, 3.0]
    vision, audio = rows(4), rows(15, 100)
    clip = compose_video("0" * 64, times, (2, 2, 4), vision, audio)
    assert order(clip) == [0, 1, 2, 3, *range(100, 115)]
    assert modality_rows(clip.layout) == {"video": (0, 4), "audio": (4, 15)}
    clip = compose_video("0" * 64, times, (2, 2, 4), vision, audio, interleave=-1)
    assert order(clip) == [0, 1, 2, 3, *range(100, 115)]
    clip = compose_video("0" * 64, times, (2, 2, 4), vision)
    assert order(clip) == [0, 1, 2, 3]
    # Sound before the first frame and after the last one is dropped.
    clip = compose_video("0" * 64, [1.0, 2.0], (1, 2, 4), rows(2), rows(40, 100))
    assert order(clip) == [0, 1, *range(106, 118)]


def test_parts_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fill the grid"):
        compose_video("0" * 64, [0.0, 1.0], (1, 4, 4), rows(3))
    with pytest.raises(ValueError, match="make 2 pairs, the grid has 1"):
        video_layout([0, 1, 2], (1, 4, 4))
    with pytest.raises(ValueError, match="at least one"):
        video_layout([], (0, 4, 4))
    with pytest.raises(ValueError, match="interleave"):
        video_layout([0, 1], (1, 4, 4), 9, interleave=-2)
