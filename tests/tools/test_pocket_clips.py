"""Clips: events happen when the answer says, in the drawn frames and in a written file."""

from __future__ import annotations

import io
import itertools
import wave

import numpy as np

from tests.tools.pocket_voices import chord_voice
from tools.pocket.data import clips
from tools.pocket.data.clip_file import encode_clip, encode_sound
from tools.pocket.data.clip_questions import tell, watch
from tools.pocket.data.clips import Script
from tools.pocket.data.sample import Clip, Sound, stream
from video.decode import decode_clip
from video.sampling import SamplingOptions
from video.source import Source


def script_of(
    index: int, seconds: int = 8, fps: int = 8, busy: int = 1
) -> tuple[Script, np.ndarray]:
    source = stream("train", "script", 0, index)
    times = clips.clip_of(clips.Colours(96, 96, ("red",), ()), seconds, fps).times()
    return clips.random_script(source, times, busy), times


def state(script: Script, time: float) -> set[tuple[str, str, str]]:
    return {(t.colour, t.shape, t.place) for t in script.things_at(time)}


def test_an_event_first_shows_in_a_sampled_frame_of_its_own_second() -> None:
    for index in range(60):
        script, times = script_of(index, seconds=(4, 8, 12, 16)[index % 4])
        assert script.events
        for event in script.events:
            shown = int(np.searchsorted(times, event.time))
            assert int(times[shown]) == event.second
            before, after = state(script, times[shown - 1]), state(script, times[shown])
            assert before != after
            assert state(script, event.time - clips.GLIDE - 0.001) == before


def test_nothing_changes_between_events() -> None:
    for index in range(20):
        script, times = script_of(index)
        moments = [event.time for event in script.events]
        for a, b in itertools.pairwise(times):
            if not any(a < moment <= b for moment in moments):
                assert state(script, a) == state(script, b)


def test_things_never_share_a_place() -> None:
    for index in range(60):
        script, times = script_of(index)
        for time in times:
            places = [thing.place for thing in script.things_at(time)]
            assert len(set(places)) == len(places)


def test_the_story_names_each_event_once_and_in_order() -> None:
    for index in range(30):
        script, _ = script_of(index)
        lines = tell(script).split("\n")
        assert [line[:5] for line in lines] == [event.stamp for event in script.events]
        assert lines == sorted(lines)
        assert all(line.endswith(e.verb) for line, e in zip(lines, script.events, strict=True))


def test_things_move_and_turn_as_much_more_often_as_asked() -> None:
    def told(busy: int) -> list[int]:
        stories = "\n".join(tell(script_of(index, busy=busy)[0]) for index in range(150))
        return [stories.count(f" {verb}") for verb in ("disappears", "moves ", "turns ")]

    seldom, often = told(1), told(3)
    for verb in (1, 2):
        # Not three times: a thing that cannot move turns or disappears.
        assert 1.8 < (often[verb] / often[0]) / (seldom[verb] / seldom[0]) < 4.5


def test_the_same_time_gives_the_same_frame() -> None:
    script, _ = script_of(1)
    again, _ = script_of(1)
    assert np.array_equal(script.draw(3.5), again.draw(3.5))


def test_spoken_words_fall_into_the_pair_of_their_event() -> None:
    heard = 0
    for index in range(40):
        sample = watch(stream("train", "said", 0, index), sound=1.0, source=chord_voice)
        clip = sample.media[0]
        assert isinstance(clip, Clip)
        assert clip.sound is not None
        assert len(clip.sound.samples) == round(clip.duration * clip.sound.rate)
        edges = [*clip.times()[::2], clip.duration]
        for start, end, _ in clip.sound.words:
            pair = np.searchsorted(edges, start, side="right")
            assert end <= edges[pair] + 0.01
            heard += 1
    assert heard > 30


def test_a_written_clip_decodes_to_the_drawn_frames() -> None:
    sample = watch(stream("heldout", "file", 0, 2), seconds=4, sound=1.0, source=chord_voice)
    clip = sample.media[0]
    assert isinstance(clip, Clip)
    decoded = decode_clip(Source(encode_clip(clip)), SamplingOptions())
    times = clip.times()
    assert np.allclose(decoded.times, times, atol=1e-3)
    assert np.abs(decoded.frames.astype(int) - clip.frames(times)).mean() < 8
    assert decoded.sound is not None
    assert abs(decoded.sound.samples.shape[1] / decoded.sound.rate - clip.duration) < 0.1


def test_a_written_sound_is_a_wav_file_of_its_samples() -> None:
    samples = np.array([0.0, 0.5, -0.5, 1.0], np.float32)
    with wave.open(io.BytesIO(encode_sound(Sound(samples, 24_000)))) as file:
        assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
        assert np.frombuffer(file.readframes(4), "<i2").tolist() == [0, 16383, -16383, 32767]
