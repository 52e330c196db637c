"""The generators: the same item every time, apart by split, and answers that are true."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from tests.tools.pocket_voices import chord_voice
from tools.pocket.data import (
    canvas,
    chat,
    fonts,
    printed,
    recall,
    scenes,
    sound_codecs,
    sounds,
    voices,
)
from tools.pocket.data.clip_questions import watch
from tools.pocket.data.compare import compare
from tools.pocket.data.sample import (
    Clip,
    Picture,
    Sample,
    Sound,
    Split,
    Stream,
    stream,
    text_of,
)
from tools.pocket.data.scene_questions import caption, look, questions
from tools.pocket.data.text_images import read
from tools.pocket.data.text_tasks import copy, count, json_record, rearrange
from tools.pocket.data.thinking import think
from tools.pocket.data.tool_tasks import tool_call
from tools.pocket.data.words import COLOURS, NUMBERS, PLACES, PRINT_HELDOUT, PRINT_TRAIN, SHAPES

BUILTIN = (fonts.BUILTIN,)
MAKERS: dict[str, Callable[[Stream], Sample]] = {
    "look": look,
    "read": lambda s: read(s, names=BUILTIN),
    "compare": lambda s: compare(s, names=BUILTIN),
    "hear_words": lambda s: sounds.hear_words(s, chord_voice),
    "hear_tones": sounds.hear_tones,
    "watch": lambda s: watch(s, sound=0.5, source=chord_voice),
    "copy": copy,
    "rearrange": rearrange,
    "count": count,
    "json": json_record,
    "tool": tool_call,
    "chat": chat.chat,
    "think": think,
    "recall": lambda s: recall.recall(s, words, 400, 4),
}


def words(text: str) -> int:
    return len(text.split())


def make(skill: str, split: Split = "train", index: int = 0, seed: int = 3) -> Sample:
    return MAKERS[skill](stream(split, skill, seed, index))


def content(sample: Sample) -> list[bytes]:
    """Everything a sample shows, as bytes."""
    found = [json.dumps(sample.conversation).encode()]
    for item in sample.media:
        if isinstance(item, Picture):
            found.append(item.pixels.tobytes())
        elif isinstance(item, Sound):
            found.append(item.samples.tobytes())
        else:
            found.append(item.frames(item.times()[:2]).tobytes())
            found.append(item.sound.samples.tobytes() if item.sound else b"")
    return found


def test_a_passage_is_repeated_reversed_or_sorted() -> None:
    for index in range(60):
        same, other = make("copy", index=index), make("rearrange", index=index)
        asked = [text_of(made.messages[0]).partition(": ") for made in (same, other)]
        assert same.answer["content"] == asked[0][2]
        answer, passage = str(other.answer["content"]), asked[1][2]
        items, told = (t.split(" ") if " " in t else list(t) for t in (passage, answer))
        assert len(items) <= 7
        backwards = asked[1][0] in ("Reverse this", "Write this backwards")
        assert told == (items[::-1] if backwards else sorted(items))


@pytest.mark.parametrize("skill", sorted(MAKERS))
def test_an_item_depends_on_split_seed_and_index_only(skill: str) -> None:
    first = content(make(skill, index=5))
    make(skill, index=6)
    assert content(make(skill, index=5)) == first
    # Small talk and counting have few sentences: two items may be alike, ten may not.
    for other in (
        [content(make(skill, "heldout", index=i)) for i in range(10)],
        [content(make(skill, index=i, seed=4)) for i in range(10)],
    ):
        assert other != [content(make(skill, index=i)) for i in range(10)]


@pytest.mark.parametrize("skill", sorted(MAKERS))
def test_samples_are_whole_conversations(skill: str) -> None:
    for index in range(8):
        sample = make(skill, index=index)
        assert sample.skill.split("_")[0] == skill.split("_")[0]
        assert sample.messages[-1]["role"] in ("user", "tool")
        assert sample.answer["role"] == "assistant"
        assert sample.answer["content"] or sample.answer["tool_calls"]
        shown = [
            part["index"]
            for message in sample.messages
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "media"
        ]
        assert shown == list(range(len(sample.media)))


def test_heldout_pools_share_nothing_with_training() -> None:
    assert not set(fonts.TRAIN) & set(fonts.HELDOUT)
    assert not set(PRINT_TRAIN) & set(PRINT_HELDOUT)
    variants = [{v.split("+")[1] for v in voices.voice_names(s)} for s in ("train", "heldout")]
    assert not variants[0] & variants[1]
    patterns = [set(canvas.KINDS[s]) - {"plain"} for s in ("train", "heldout")]
    assert not patterns[0] & patterns[1]


THING = re.compile(r"(?P<place>[a-z ]+): (?P<size>\w+) (?P<colour>\w+) (?P<shape>\w+)")


def answer_from(told: list[dict[str, str]], question: str) -> str | None:
    """The answer to a counting, colour, place or existence question, from the caption alone."""
    if question in ("How many objects are there?", "Count the objects."):
        return NUMBERS[len(told)]
    if found := re.fullmatch(r"How many (\w+) objects are there\?", question):
        return NUMBERS[sum(t["colour"] == found[1] for t in told)]
    if found := re.fullmatch(r"(?:What|Which) colour (?:is|does) the (\w+)(?: have)?\?", question):
        return next(t["colour"] for t in told if t["shape"] == found[1])
    if found := re.fullmatch(r"(?:Where|In which place) is the (\w+) (\w+)\?", question):
        return next(t["place"] for t in told if (t["colour"], t["shape"]) == found.groups())
    if found := re.fullmatch(r"Is there a (\w+) (\w+)\?", question):
        return "yes" if any((t["colour"], t["shape"]) == found.groups() for t in told) else "no"
    if found := re.fullmatch(r"Is the (\w+) (left of|right of|above|below) the (\w+)\?", question):
        a, b = (
            divmod(PLACES.index(next(t["place"] for t in told if t["shape"] == found[k])), 3)
            for k in (1, 3)
        )
        true = {
            "left of": a[1] < b[1],
            "right of": a[1] > b[1],
            "above": a[0] < b[0],
            "below": a[0] > b[0],
        }
        return "yes" if true[found[2]] else "no"
    return None


def test_answers_about_a_scene_agree_with_its_caption() -> None:
    checked = 0
    for index in range(400):
        source = stream("train", "agree", 0, index)
        scene = scenes.random_scene(source)
        told = [found.groupdict() for found in THING.finditer(caption(scene).replace("; ", "\n"))]
        assert len(told) == len(scene.things)
        for question, answer in questions(scene, source.rng, 3):
            expected = answer_from(told, question)
            assert expected in (None, answer), (caption(scene), question)
            checked += expected is not None
    assert checked > 300


def test_things_stand_where_the_scene_says_and_look_as_named() -> None:
    for index in range(30):
        source = stream("train", "paint", 0, index)
        scene = scenes.random_scene(source, counts=(1, 2, 3))
        pixels = np.asarray(scenes.render(scene, source)).astype(int)
        for thing in scene.things:
            shown = pixels[int(thing.y), int(thing.x)]
            nearest = min(COLOURS, key=lambda c: np.abs(shown - scenes.PAINT[c]).sum())
            assert nearest == thing.colour
            row, column = int(thing.y * 3 / scene.height), int(thing.x * 3 / scene.width)
            assert PLACES[row * 3 + column] == thing.place


def test_canvases_vary_and_are_never_small_after_the_resize() -> None:
    sizes = [canvas.canvas_size(stream("train", "size", 0, i), 64, 320) for i in range(300)]
    assert len(set(sizes)) > 200
    assert all(min(canvas.resized(*size)) >= 96 for size in sizes)
    aspects = [width / height for height, width in sizes]
    assert min(aspects) < 0.5
    assert max(aspects) > 2


def test_print_has_the_asked_size_after_the_resize() -> None:
    for index in range(30):
        sample = read(stream("heldout", "print", 0, index), low=20, high=28, names=BUILTIN)
        assert 20 <= sample.detail["print"] <= 28
        assert sample.answer["content"] == sample.answer["content"].upper()
        assert 1 <= len(sample.answer["content"]) <= 6


def test_training_stretches_print_and_its_boxes_alike() -> None:
    line = printed.Line("HI", fonts.BUILTIN, 30, 20.0, 10.0)
    widths = set()
    for index in range(20):
        shown = printed.print_lines(stream("train", "stretched", 0, index), 60, 100, [line]).facts
        widths.add(shown.width)
        assert shown.boxes[0].left == pytest.approx(20.0 * shown.width / 100)
        assert shown.boxes[0].right == shown.boxes[1].left
    assert {w for w in widths if w < 100}
    assert {w for w in widths if w > 100}
    asked = printed.print_lines(stream("heldout", "stretched", 0, 0), 60, 100, [line])
    assert asked.pixels.shape == (60, 100, 3)


def test_a_voice_at_another_pace_is_shorter_and_higher() -> None:
    voice = chord_voice(stream("train", "pace", 0, 0))
    usual, fast = voice.take(0), dataclasses.replace(voice, pace=1.25).take(0)
    assert len(fast) == pytest.approx(len(usual) / 1.25, abs=2)
    lows = [np.abs(np.fft.rfft(wave))[: len(wave) * 900 // voices.RATE] for wave in (usual, fast)]
    peaks = [low.argmax() / len(wave) for low, wave in zip(lows, (usual, fast), strict=True)]
    assert peaks[1] / peaks[0] == pytest.approx(1.25, rel=0.03)


@pytest.mark.parametrize("codec", sound_codecs.CODECS)
def test_a_coded_sound_keeps_its_length_and_its_times(codec: str) -> None:
    rng = np.random.default_rng(0)
    wave = np.zeros(30_001, np.float32)
    wave[9_000:12_000] = 0.3 * rng.standard_normal(3_000)
    wave[20_000:28_000] = 0.3 * np.sin(np.arange(8_000) / 12)
    heard = sound_codecs.coded(Sound(wave, voices.RATE), codec, 48_000)
    assert heard.shape == wave.shape
    assert heard.dtype == np.float32
    assert not np.array_equal(heard, wave)
    assert np.corrcoef(heard, wave)[0, 1] > 0.9


def test_pictures_survive_png_and_nearly_jpeg() -> None:
    picture = make("look").media[0]
    assert isinstance(picture, Picture)
    again = np.asarray(Image.open(io.BytesIO(picture.encoded())))
    assert np.array_equal(again, picture.pixels)
    lossy = np.asarray(Image.open(io.BytesIO(picture.encoded("JPEG"))))
    assert 0 < np.abs(lossy.astype(int) - picture.pixels).mean() < 12


COUNTS = r"The first has (\d), the second has (\d): (.+)\."


def test_more_is_decided_by_the_counts_that_the_answer_spells() -> None:
    found = 0
    for index in range(150):
        sample = make("compare", index=index)
        for message in sample.conversation:
            told = re.match(
                r"The first has (\d), the second has (\d): (.+)\.", str(message["content"])
            )
            if told:
                a, b = int(told[1]), int(told[2])
                assert told[3] == (
                    "the first" if a > b else "the second" if b > a else "both the same"
                )
                found += 1
    assert found > 10


def test_spoken_words_lie_where_the_sound_says() -> None:
    for index in range(20):
        sound = make("hear_words", index=index).media[0]
        assert isinstance(sound, Sound)
        assert sound.samples.dtype == np.float32
        assert np.abs(sound.samples).max() <= 1
        loud = np.abs(sound.samples).max()
        for start, end, _ in sound.words:
            part = sound.samples[int(start * sound.rate) : int(end * sound.rate)]
            assert np.abs(part).max() > 0.3 * loud


def test_beeps_are_as_many_as_the_answer() -> None:
    for index in range(20):
        sound = sounds.beeps(stream("train", "beeps", 0, index))
        level = np.sqrt(np.convolve(sound.samples**2, np.ones(600) / 600, "same"))
        on = level > 0.35 * level.max()
        assert np.count_nonzero(np.diff(on.astype(int)) == 1) == len(sound.words)


def test_fonts_say_what_to_install() -> None:
    with pytest.raises(RuntimeError, match=r"install .*fonts-liberation"):
        fonts.font("NoSuchFont.ttf", 20)


def test_espeak_has_every_voice_and_its_speed() -> None:
    names = (*voices.voice_names("train"), *voices.voice_names("heldout"))
    for name in names[::9]:
        slow, fast = (voices.speak("seven", name, speed, 50) for speed in (110, 200))
        assert 0.1 * 24_000 < len(fast) < len(slow) < 1.5 * 24_000
        assert abs(len(slow) - len(voices.speak("seven", name, 110, 50))) < 240
    assert not np.array_equal(*(voices.speak(w, names[0], 150, 50)[:2000] for w in ("one", "six")))
    with pytest.raises(ValueError, match="no voice 'nobody'"):
        voices.speak("one", "nobody", 150, 50)


def test_recall_is_answerable_and_as_long_as_asked() -> None:
    for length in (400, 1000):
        sample = recall.recall(stream("train", "recall", 0, length), words, length, 6)
        passage = sample.messages[0]["content"]
        assert length - 250 < words(passage) < length
        for question, answer in zip(
            sample.conversation[::2], sample.conversation[1::2], strict=True
        ):
            asked = re.search(r"What is the (\w+) of (\w+)\?$", question["content"])
            assert asked
            found = re.findall(rf"The {asked[1]} of {asked[2]} is (\d+)\.", passage)
            assert found == [answer["content"]]
    with pytest.raises(ValueError, match="too few"):
        recall.recall(stream("train", "recall", 0, 0), words, 100, 6)


def test_tool_calls_use_an_offered_tool_and_its_parameters() -> None:
    for index in range(60):
        sample = make("tool", index=index)
        offered = {tool["function"]["name"]: tool["function"] for tool in sample.tools}
        assert len(offered) == 2
        call = next(m for m in sample.conversation if m.get("tool_calls"))["tool_calls"][0]
        declared = offered[call["function"]["name"]]["parameters"]
        assert list(call["function"]["arguments"]) == declared["required"]


def test_json_answers_hold_what_is_asked() -> None:
    for index in range(60):
        sample = make("json", index=index)
        record = json.loads(sample.answer["content"])
        schema = sample.detail.get("schema")
        if schema is not None:
            assert list(record) == schema["required"]
        for value in record.values():
            told = value if isinstance(value, list) else [value]
            for part in told:
                assert isinstance(part, bool) or str(part) in sample.messages[0]["content"]


def test_reasoning_counts_up_to_the_answer() -> None:
    for index in range(30):
        sample = make("think", index=index)
        assert sample.thinking
        last = sample.answer["reasoning_content"].split()[-1]
        assert NUMBERS[int(last)] == sample.answer["content"]


def test_all_shapes_and_colours_occur() -> None:
    things = [
        thing
        for i in range(60)
        for thing in scenes.random_scene(stream("heldout", "all", 0, i)).things
    ]
    assert {thing.shape for thing in things} == set(SHAPES)
    assert {thing.colour for thing in things} == set(COLOURS)


def test_clip_items_are_clips() -> None:
    assert isinstance(make("watch").media[0], Clip)
