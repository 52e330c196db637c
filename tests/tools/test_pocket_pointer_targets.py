"""Which rows each part of an answer is about, for every kind of media."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tools.pocket.data.labels import CharacterBox, Facts, Happening
from tools.pocket.data.sample import Clip, Media, Picture, Sample, Sound, ask_all
from tools.pocket.data.words import COLOURS, SHAPES, SIZES
from tools.pocket.train.clip_labels import with_events
from tools.pocket.train.example import Example
from tools.pocket.train.media import Prepared
from tools.pocket.train.pointer_targets import Numbers, pointers
from tools.pocket.train.pointers import Pointer
from tools.pocket.train.shown import placed
from tools.pocket.train.vision_data import MERGE, Item, item_of

BEFORE = 3  # positions before the first row

Pair = tuple[str, str]


def targets(
    media: list[tuple[Media, Prepared]], *pairs: Pair
) -> tuple[list[tuple[int, int]], list[Pointer], Numbers]:
    """The turns of an example, its pointers and its numbers. A token is a character."""
    vision = sum(len(item.patches) for _, p in media for item in p.items) // MERGE**2
    audio = sum(len(p.codes) for _, p in media if p.codes is not None)
    ids, turns = [0] * (BEFORE + vision + audio), []
    for _, answer in pairs:
        ids.append(0)  # its token predicts the first character
        turns.append((len(ids), len(ids) + len(answer) + 1))
        ids += [*map(ord, answer), 0]
    seen = range(BEFORE, BEFORE + vision)
    heard = range(seen.stop, seen.stop + audio)
    example = Example("look", ids, [], list(seen), list(heard), turns)
    messages, answer = ask_all(range(len(media)), pairs)
    sample = Sample("look", messages, answer, tuple(medium for medium, _ in media))
    shown = placed(example, sample.media, [ready for _, ready in media])
    return turns, *pointers(example, sample, shown, lambda ids: "".join(map(chr, ids)))


def pointed(media: list[tuple[Media, Prepared]], *pairs: Pair) -> list[dict[str, tuple[int, ...]]]:
    """For each answer its characters with the rows, counted from the first of all, that the token
    before them points at."""
    turns, found, _ = targets(media, *pairs)
    rows = {p.position: tuple(t - BEFORE for t in p.targets) for p in found}
    return [
        {said + str(i): rows.get(first + i - 1, ()) for i, said in enumerate(f"{text}$")}
        for (first, _), (_, text) in zip(turns, pairs, strict=True)
    ]


def numbered(media: list[tuple[Media, Prepared]], question: str, answer: str) -> dict[str, int]:
    """The characters of an answer whose number is told, with it; $ is the end."""
    ((first, _),), _, numbers = targets(media, (question, answer))
    said = f"{answer}$"
    return {f"{said[at - first + 1]}{at - first + 1}": number for at, number in numbers}


def spans(found: dict[str, tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    """Runs of characters that point at the same rows; $ is the end."""
    runs: list[tuple[str, tuple[int, ...]]] = []
    for said, rows in found.items():
        if runs and runs[-1][1] == rows:
            runs[-1] = (runs[-1][0] + said[0], rows)
        else:
            runs.append((said[0], rows))
    return runs


def scene(*things: tuple[str, int]) -> tuple[Picture, Prepared]:
    """A picture of 3 x 3 rows with things (name, row), each as large as its row."""
    attributes = []
    for name, _ in things:
        size, colour, shape = name.split()
        attributes.append(
            (COLOURS.index(colour) + 1, SHAPES.index(shape) + 1, SIZES.index(size) + 1)
        )
    return _picture(scene_facts(attributes, [row for _, row in things]))


def scene_facts(attributes: Sequence[tuple[int, int, int]], rows: Sequence[int]) -> Facts:
    """Of a frame of 3 x 3 rows: each thing is as large as its row."""
    ids = np.zeros((96, 96), np.uint8)
    for number, row in enumerate(rows, start=1):
        y, x = divmod(row, 3)
        ids[y * 32 : y * 32 + 32, x * 32 : x * 32 + 32] = number
    return Facts(96, 96, ids, attributes)


def _picture(facts: Facts) -> tuple[Picture, Prepared]:
    picture = Picture(np.zeros((facts.height, facts.width, 3), np.uint8), facts)
    return picture, Prepared((item_of(picture.pixels[None], [facts]),), None, ())


TWO = scene(("small red circle", 0), ("large red square", 5))


@pytest.mark.parametrize(
    ("question", "answer", "rows"),
    [
        ("What colour is the circle?", "red", (0,)),
        ("What shape is the large object?", "square", (5,)),
        ("Is the red circle small or large?", "small", (0,)),
        ("Where is the red square?", "right", (5,)),
        ("What is at the top left?", "small red circle", (0,)),
        ("Is there a red square?", "yes", (5,)),
        ("Is there a blue square?", "no", ()),
        ("What is at the bottom?", "nothing", ()),
        ("How many red objects are there?", "two", (5,)),
        ("How many circles are there?", "one", (0,)),
        ("How many objects are there?", "two", (5,)),
        ("Count the objects.", "two", (5,)),
        ("How many stars are there?", "zero", (9,)),  # the end of the question
        ("Is the circle left of the square?", "yes", ()),
    ],
)
def test_a_short_answer_points_at_its_thing(
    question: str, answer: str, rows: tuple[int, ...]
) -> None:
    (found,) = pointed([TWO], (question, answer))
    assert spans(found) == [(f"{answer}$", rows)]


def test_a_description_points_at_one_thing_after_the_other() -> None:
    (found,) = pointed(
        [TWO], ("What do you see?", "top left: small red circle; right: large red square.")
    )
    assert spans(found) == [
        ("top left: small red circle", (0,)),
        ("; right: large red square.$", (5,)),
    ]


def test_an_empty_thought_before_the_answer_points_nowhere() -> None:
    ids = [0] * (BEFORE + 9 + 1) + [*map(ord, "<>red"), 0]
    example = Example("look", ids, [], list(range(BEFORE, BEFORE + 9)), turns=[(13, 19)])
    messages, answer = ask_all([0], [("What colour is the circle?", "red")])
    sample = Sample("look", messages, answer, (TWO[0],))
    shown = placed(example, sample.media, [TWO[1]])
    found = pointers(example, sample, shown, lambda ids: "".join(map(chr, ids)))
    assert found == ([Pointer(position, (BEFORE,)) for position in range(14, 18)], [])


def test_of_two_equal_things_the_place_decides() -> None:
    equal = scene(("small red circle", 0), ("small red circle", 8))
    said = "top left: small red circle; bottom right: small red circle."
    (found,) = pointed([equal], ("What do you see?", said))
    assert [rows for _, rows in spans(found)] == [(0,), (8,)]


def test_an_order_word_chooses_the_image() -> None:
    other = scene(("large blue star", 4))
    first, second = pointed(
        [TWO, other],
        ("Look at the first image. What colour is the circle?", "red"),
        ("What is in the second image?", "centre: large blue star."),
    )
    assert {rows for _, rows in spans(first)} == {(0,)}
    assert {rows for _, rows in spans(second)} == {(9 + 4,)}


def test_counts_of_two_images_point_at_the_last_that_counts_in_each() -> None:
    other = scene(("large blue star", 4), ("small red star", 7))
    said = "The first has 2, the second has 1: the first."
    red, stars = pointed(
        [TWO, other],
        ("Which image has more red objects?", said),
        ("Which image has more stars?", said),
    )
    assert spans(red) == [
        ("The first has 2", (5,)),
        (", the second has 1:", (9 + 7,)),
        (" the first.$", ()),
    ]
    end = 18 + 1 + len(said) + 1  # of the second question: both scenes, the first answer, its end
    assert spans(stars)[:2] == [("The first has 2", (end,)), (", the second has 1:", (9 + 7,))]


def test_printed_characters_point_at_the_rows_that_show_them() -> None:
    # After the resize to 96 x 96 pixels, with rows 32 pixels wide, A lies in the first, B on
    # the edge of the first two, C in the third.
    boxes = [
        CharacterBox("A", 0, 12, 2, 14),
        CharacterBox("b", 12, 28, 2, 14),
        CharacterBox("C", 44, 60, 2, 14),
    ]
    (found,) = pointed([_picture(Facts(64, 64, boxes=boxes))], ("Read the text.", "ABC"))
    assert spans(found) == [("A", (0,)), ("B", (0, 1)), ("C", (2,)), ("$", ())]
    told = numbered([_picture(Facts(64, 64, boxes=boxes))], "Read the text.", "ABC")
    assert told == {"A0": 0, "B1": 1, "C2": 2, "$3": 3}


def sound(*words: tuple[float, float, str]) -> tuple[Sound, Prepared]:
    codes = torch.zeros(25, 4, 8, dtype=torch.int64)  # 4 seconds
    return Sound(np.zeros(1, np.float32), 24_000, words), Prepared((), codes, ())


def test_words_point_at_the_sound_of_each() -> None:
    heard = sound((0.1, 0.3, "red"), (1.0, 1.4, "two"))
    (found,) = pointed([heard], ("What do you hear?", "red two"))
    assert spans(found) == [("red", (0, 1)), (" two", (6, 7, 8)), ("$", ())]
    told = numbered([heard], "What do you hear?", "red two")
    assert list(told.values()) == [0, 0, 0, 1, 1, 1, 1, 2]
    assert numbered([sound((0.1, 0.3, "a"), (1.0, 1.4, "two"))], "Which is a number?", "two") == {}
    (found,) = pointed([sound((0.1, 0.3, "beep"))], ("How many beeps are there?", "one"))
    assert spans(found) == [("one$", ())]


def test_a_sentence_of_unknown_times_points_nowhere() -> None:
    (found,) = pointed([sound((0.1, 2.0, "the red one"))], ("What do you hear?", "the red one"))
    assert spans(found) == [("the red one$", ())]


HAPPENS = (Happening.of(1.0, "appears", 1), Happening.of(5.0, "turns red", 1))


def clip(track: bool = False, happens: tuple[Happening, ...] = HAPPENS) -> tuple[Clip, Prepared]:
    """Four pairs of frames of nine rows each; something happens at seconds 1 and 5."""
    times = [float(t) for t in range(8)]
    facts = Facts(32, 32, np.ones((32, 32), np.uint8), [(1, 1, 1)])
    pair = item_of(np.zeros((2, 32, 32, 3), np.uint8), [facts, facts])
    items: tuple[Item, ...] = with_events([pair] * 4, times, happens)
    heard, ready = sound((1.0, 1.2, "seven"), (5.0, 5.2, "two"))
    made = Clip(
        lambda t: np.zeros((32, 32, 3), np.uint8),
        lambda t: facts,
        1,
        8,
        heard if track else None,
        happens,
    )
    return made, Prepared(items, ready.codes if track else None, ())


def test_answers_about_events_point_at_the_rows_of_their_second() -> None:
    silent = clip()
    rows = len(silent[1].items[0].patches) // MERGE**2
    early, late = tuple(range(rows)), tuple(range(2 * rows, 3 * rows))
    told, when, what, first, last, never = pointed(
        [silent],
        ("Describe the video.", "00:01 a\n00:05 b"),
        ("When does the red circle turn red?", "00:05"),
        ("What does the red circle do at 00:01?", "it appears"),
        ("What happens first?", "it appears"),
        ("What happens last?", "it turns red"),
        ("When does it end?", "00:07"),
    )
    assert spans(told) == [("00:01 a", early), ("\n00:05 b$", late)]
    assert spans(when) == [("00:05$", late)]
    assert {rows for _, rows in spans(what)} == {rows for _, rows in spans(first)} == {early}
    assert {rows for _, rows in spans(last)} == {late}
    assert {rows for _, rows in spans(never)} == {()}
    lines = numbered([silent], "Describe the video.", "00:01 a\n00:05 b")
    assert list(lines.values()) == [0] * 7 + [1] * 8 + [2]
    assert numbered([silent], "When does the red circle turn red?", "00:05") == {}


def test_the_colours_of_a_clip_point_at_its_beginning_and_its_changes() -> None:
    film = clip()
    rows = len(film[1].items[0].patches) // MERGE**2
    changes = [tuple(range(k * rows, (k + 1) * rows)) for k in (0, 2)]
    said = "first red, then blue, then green"
    (found,) = pointed([film], ("Which colours are shown, in order?", said))
    assert spans(found) == [("first red, then blue", changes[0]), (", then green$", changes[1])]
    told = numbered([film], "Which colours are shown, in order?", said)
    assert list(told.values()) == [0] * 11 + [1] * 12 + [2]
    (other,) = pointed([film], ("Which colours are shown, in order?", "first red, then blue"))
    assert spans(other) == [("first red", changes[0]), (", then blue$", ())]


def test_what_is_said_in_a_clip_points_at_the_sound() -> None:
    film = clip(track=True)
    seen = sum(len(item.patches) for item in film[1].items) // MERGE**2
    said, when = pointed(
        [film],
        ("What is said in the video?", "seven two"),
        ("What is said when the red circle appears?", "seven"),
    )
    assert spans(said)[0] == ("seven", (seen + 6, seen + 7))
    assert spans(when) == [("seven", (seen + 6, seen + 7)), ("$", ())]


def test_a_word_that_is_heard_before_its_event_is_seen_points_at_the_event() -> None:
    happens = (HAPPENS[0], Happening.of(3.3, "turns red", 1))
    film, ready = clip(track=True, happens=happens)
    assert film.sound is not None
    words = (film.sound.words[0], (3.4, 3.8, "two"))
    film = replace(film, sound=replace(film.sound, words=words))
    rows = len(ready.items[0].patches) // MERGE**2
    seen, other = pointed(
        [(film, ready)],
        ("What is said when the red circle turns red?", "two"),
        ("What is said when the red circle appears?", "seven"),
    )
    assert spans(seen) == [("two$", tuple(range(2 * rows, 3 * rows)))]
    assert spans(other) == [("seven", (4 * rows + 6, 4 * rows + 7)), ("$", ())]
