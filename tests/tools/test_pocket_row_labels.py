"""What rows of print and sound hold, and the head that learns to say it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.tools.test_pocket_pointer_targets import clip, scene
from tools.pocket.data.labels import CHARACTERS, IGNORE, CharacterBox, Facts
from tools.pocket.data.sample import Clip, Picture, Sound
from tools.pocket.train.audio_model import VOCABULARY
from tools.pocket.train.example import Example
from tools.pocket.train.media import Prepared
from tools.pocket.train.row_labels import NUMBERS, RowHead, row_labels, told_labels
from tools.pocket.train.shown import Shown, Thing
from tools.pocket.train.thing_counts import FIRST, HEADS, NONE, pointers_to_same
from tools.pocket.train.thing_counts import MOST as MOST_THINGS
from tools.pocket.train.vision_data import item_of

NOTHING = (IGNORE,) * 4  # is known to happen


def letter(character: str) -> int:
    return CHARACTERS.index(character) + 1


def word(name: str) -> int:
    return VOCABULARY.index(name)


def test_a_row_of_print_knows_its_first_number_and_its_characters_by_theirs() -> None:
    boxes = [
        CharacterBox(c, left, left + 14, 4, 28) for c, left in zip("aBc", (2, 17, 34), strict=True)
    ]
    picture = Picture(np.zeros((96, 96, 3), np.uint8), Facts(96, 96, boxes=boxes))
    item = item_of(picture.pixels[None], [picture.facts])
    shown = Shown(picture, Prepared((item,), None, ()), list(range(10, 19)), [])
    assert row_labels([shown]) == {
        "printed": [(10, (0, letter("A"), letter("B"), 0, 0)), (11, (2, 0, 0, letter("C"), 0))],
        "numbered": [(10, (0, 1)), (11, (2, 2))],
        "spoken": [],
        "seen": [],
        "things": [],
        "tracked": [],
    }


def test_a_row_of_a_thing_knows_how_many_of_its_kind_there_are_so_far() -> None:
    picture, ready = scene(
        *(("small red star", 7), ("large red circle", 0), ("small blue star", 2)),
        ("small blue star", 5),
    )
    found = row_labels([Shown(picture, ready, list(range(20, 29)), [])])
    assert found == {
        "printed": [],
        "numbered": [],
        "spoken": [],
        "seen": [],
        "things": [(20, (0, 0, 0)), (22, (0, 0, 1)), (25, (1, 1, 2)), (27, (1, 2, 3))],
        "tracked": [],
    }


def test_a_row_of_a_thing_looks_at_the_one_of_its_kind_before_it() -> None:
    circle, star, third = (20, 23), (22,), (25,)
    things = [("red", "circle", circle), ("blue", "star", star), ("blue", "star", third)]
    about = Shown(*scene(), [], [])
    about.__dict__["things"] = [Thing(*thing) for thing in (*things, ("red", "star", (21, 27)))]
    found = {(p.position, p.head): (p.targets, p.weight) for p in pointers_to_same(about)}
    colour, shape = HEADS
    assert found == {
        **{(row, kind): ((NONE,), FIRST) for row in (20, 23, 22) for kind in (colour, shape)},
        **{(25, kind): (star, 1.0) for kind in (colour, shape)},
        # The first row of the last thing comes before others are complete.
        (21, colour): ((20,), 1.0),
        (21, shape): ((NONE,), FIRST),
        (27, colour): (circle, 1.0),
        (27, shape): (third, 1.0),
    }


def test_a_token_knows_the_number_of_what_it_tells() -> None:
    assert told_labels([(4, 0), (9, 5), (11, 11)]) == [
        *((4, (0, 0)), (9, (5, 1)), (11, (NUMBERS - 1, 3))),
    ]


def test_a_word_is_known_from_its_middle_on_and_a_sentence_is_not() -> None:
    words = ((0.0, 0.32, "red"), (1.0, 1.6, "the red star"), (2.0, 2.3, "two"))
    sound = Sound(np.zeros(1, np.float32), 24_000, words)
    ready = Prepared((), torch.zeros(25, 4, 8, dtype=torch.int64), ())
    positions = list(range(100, 125))
    expected = [
        (101, (0, word("red"), *NOTHING)),
        (102, (0, word("red"), *NOTHING)),
        (113, (2, word("two"), *NOTHING)),
        (114, (2, word("two"), *NOTHING)),
    ]
    assert row_labels([Shown(sound, ready, [], positions)])["spoken"] == expected
    quiet = Clip(lambda t: np.zeros((2, 2, 3)), lambda t: None, 1, 4, sound)
    seen = replace(clip()[1], codes=ready.codes)
    assert row_labels([Shown(quiet, seen, list(range(36)), positions)])["spoken"] == expected


def test_what_happens_is_known_where_it_was_both_seen_and_heard() -> None:
    film, ready = clip(track=True)
    vision, audio = list(range(36)), list(range(100, 150))
    assert film.sound is not None
    found = row_labels([Shown(film, ready, vision, audio)])
    first, second = film.happenings
    # Seen in the first pair, and heard in its sound, whose rows come after the pair's.
    assert next(classes for _, classes in found["spoken"]) == (
        *(0, word("seven"), first.kind),
        *(first.was, first.shape, first.becomes),
    )
    assert found["seen"] == []
    # Between two pairs: heard with the earlier one, seen with the later.
    late = replace(second, time=5.4)
    words = (film.sound.words[0], (5.4, 5.7, "two"))
    moved = replace(film, happenings=(first, late), sound=replace(film.sound, words=words))
    found = row_labels([Shown(moved, clip(happens=(first, late))[1], vision, audio)])
    last = [classes for row, classes in found["spoken"] if row >= 100 + int(5.55 * 6.25)]
    assert last == [(1, word("two"), *NOTHING)] * len(last)
    assert last
    assert found["seen"] == [(row, (word("two"),)) for row in range(27, 36)]
    # The same word twice: only the one whose event is seen later is known there, and once.
    twice = replace(film.sound, words=((1.0, 1.2, "two"), words[1]))
    moved = replace(moved, sound=twice)
    again = row_labels([Shown(moved, clip(happens=(first, late))[1], vision, audio)])
    assert again["seen"] == found["seen"]


def test_the_head_learns_the_labels_and_only_they_count() -> None:
    torch.manual_seed(0)
    head, stream = RowHead(16), torch.randn(2, 6, 16)
    silent = Example("look", [], [])
    assert head.loss(stream, [silent, silent]).item() == 0.0
    line = Example("read", [], [])
    line.row_labels = {"printed": [(2, (0, 3, 4, 0, 0)), (3, (2, 0, 0, 5, 0))], "spoken": []}
    heard = Example("hear_words", [], [])
    heard.row_labels = {
        "spoken": [(1, (NUMBERS - 1, word("two"), *NOTHING))],
        "counted": [(2, (4,))],
    }
    changed = stream.clone()
    changed[0, 4:] += 1.0
    assert torch.equal(head.loss(stream, [line, heard]), head.loss(changed, [line, heard]))
    first = head.loss(stream, [line, heard]).item()
    optim = torch.optim.Adam(head.parameters(), 0.05)
    for _ in range(50):
        optim.zero_grad()
        head.loss(stream, [line, heard]).backward()
        optim.step()
    assert head.loss(stream, [line, heard]).item() < 0.1 * first


def test_the_first_of_a_kind_weighs_less() -> None:
    head, stream = RowHead(16), torch.randn(1, 6, 16)

    def loss(colour: int) -> float:
        of_things = Example("look", [], [])
        of_things.row_labels = {"things": [(1, (0, 1, 1)), (2, (colour, 1, 1))]}
        return head.loss(stream, [of_things]).item()

    logits = head.heads["things"](head.norm(stream[0, [1, 2]])).split(MOST_THINGS, -1)
    first, second = -logits[0].log_softmax(-1).detach()
    weighted = (0.15 * first[0] + second[1]) / 1.15
    assert loss(1) - loss(0) == pytest.approx(
        float(weighted - (first[0] + second[0]) / 2), abs=1e-5
    )
