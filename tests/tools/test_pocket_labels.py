"""Labels of patches: what the vision tower is taught about each 16 x 16 square."""

from __future__ import annotations

import numpy as np
import pytest

from tools.pocket.data import clips, fonts, scenes
from tools.pocket.data.labels import CHARACTERS, IGNORE, CharacterBox, Facts
from tools.pocket.data.printed import Line, print_lines
from tools.pocket.data.sample import stream
from tools.pocket.data.scenes import PAINT, Scene, Thing
from tools.pocket.data.words import COLOURS, SHAPES, SIZES
from tools.pocket.train import vision_data
from tools.pocket.train.vision_data import block_order, item_of

RED, CIRCLE, LARGE = COLOURS.index("red") + 1, SHAPES.index("circle") + 1, SIZES.index("large") + 1


def thing(x: float, y: float, radius: float) -> Thing:
    return Thing("red", "circle", "large", "top left", x, y, radius, 0.0, PAINT["red"])


def test_patches_under_a_thing_carry_its_classes() -> None:
    facts = scenes.facts(Scene(96, 128, (255, 255, 255), (thing(32, 32, 20),)))
    labels = facts.labels(6, 8)
    assert labels.colour[1:3, 1:3].tolist() == [[RED, RED], [RED, RED]]
    assert labels.shape[1, 1] == CIRCLE
    assert labels.size[2, 2] == LARGE
    assert (labels.colour[4:] == 0).all()
    assert (labels.colour[:, 4:] == 0).all()


def test_patches_that_a_thing_hardly_touches_are_left_out() -> None:
    facts = scenes.facts(Scene(96, 96, (255, 255, 255), (thing(48, 48, 19),)))
    labels = facts.labels(6, 6)
    assert labels.colour[1, 1] == IGNORE or labels.colour[1, 1] == 0
    assert labels.colour[2, 1] == IGNORE
    assert labels.colour[2, 2] == RED


def test_the_smallest_thing_keeps_one_patch() -> None:
    facts = scenes.facts(Scene(96, 96, (255, 255, 255), (thing(16, 16, 3),)))
    assert (facts.labels(6, 6).colour == RED).sum() == 1


def test_labels_follow_the_resize() -> None:
    facts = scenes.facts(Scene(48, 48, (255, 255, 255), (thing(16, 16, 8),)))
    assert facts.labels(6, 6).colour[1:3, 1:3].tolist() == [[RED, RED], [RED, RED]]


def test_characters_are_labelled_by_quarters_of_a_patch() -> None:
    boxes = [CharacterBox("a", 8.0, 20.0, 16.0, 32.0), CharacterBox("7", 20.0, 28.0, 16.0, 32.0)]
    found = Facts(64, 64, boxes=boxes).labels(4, 4).characters
    a, seven = CHARACTERS.index("A") + 1, CHARACTERS.index("7") + 1
    assert found[1].flatten().tolist() == [0, 0, a, a, a, seven, seven, 0] + [0] * 8
    assert (found[[0, 2, 3]] == 0).all()


def test_characters_are_numbered_in_their_line() -> None:
    picture = print_lines(
        stream("train", "numbers", 0, 0),
        96,
        256,
        [Line("AB", fonts.BUILTIN, 30, 4.0, 4.0), Line("7654321X", fonts.BUILTIN, 30, 4.0, 50.0)],
    )
    found = picture.facts.labels(6, 16)
    printed = found.characters > 0
    assert (found.numbers[printed] > 0).all()
    assert (found.numbers[~printed] == found.characters[~printed]).all()
    upper, lower = found.numbers[:3], found.numbers[3:]
    assert set(upper[upper > 0].tolist()) == {1, 2}
    assert (found.characters[:3][upper == 2] == CHARACTERS.index("B") + 1).all()
    assert set(lower[lower > 0].tolist()) == {1, 2, 3, 4, 5, 6}
    assert (lower[found.characters[3:] == CHARACTERS.index("X") + 1] == 6).all()


def test_characters_of_a_patch_are_told_apart_by_number() -> None:
    """In a patch: the fourth and the fifth; one and its fourth successor; one beside something
    that is no label; nothing."""
    characters = np.array([[7, 7, 8, 8], [7, 7, 8, 8], [0, 0, 7, IGNORE], [0, 0, 0, 0]])
    numbers = np.array([[4, 4, 5, 5], [1, 1, 5, 5], [0, 0, 2, IGNORE], [0, 0, 0, 0]])
    assert vision_data.slots(characters, numbers).tolist() == [
        [8, 0, 0, 7],
        [IGNORE, 0, 0, 0],
        [IGNORE, 7, IGNORE, IGNORE],
        [0, 0, 0, 0],
    ]


def test_print_between_two_rows_of_patches_belongs_to_the_one_that_shows_more() -> None:
    found = Facts(64, 64, boxes=[CharacterBox("B", 0.0, 16.0, 12.0, 26.0)]).labels(4, 4).characters
    assert (found[0, 0] == IGNORE).all()
    assert (found[1, 0] == CHARACTERS.index("B") + 1).all()


def test_boxes_lie_on_the_ink() -> None:
    source = stream("train", "ink", 0, 3)
    line = Line("HE7", fonts.BUILTIN, 30, 20.0, 10.0)
    picture = print_lines(source, 64, 128, [line])
    grey = picture.pixels.astype(int).sum(axis=2)
    ground = int(np.median(grey))
    ink = np.abs(grey - ground) > 200
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    boxes = line.boxes()
    assert boxes[0].top - 2 <= rows[0] <= rows[-1] <= boxes[0].bottom + 2
    assert boxes[0].left - 2 <= columns[0] <= columns[-1] <= boxes[-1].right + 2


def test_block_order_is_that_of_the_tower() -> None:
    values = np.arange(16).reshape(4, 4)
    assert block_order(values).tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]


def test_items_line_up_patches_and_labels() -> None:
    pixels = np.full((1, 96, 128, 3), 255, np.uint8)
    scene = Scene(96, 128, (255, 255, 255), (thing(96, 32, 14),))
    pixels[0, 18:46, 82:110] = PAINT["red"]
    item = item_of(pixels, [scenes.facts(scene)])
    assert item.grid == (1, 6, 8)
    # A patch's features are channel by channel: red squares are dark in green and blue.
    blue = item.patches.view(-1, 3, 256)[:, 2].mean(dim=1)
    inside = item.labels.colour[:, 0] == RED
    assert inside.sum() == 4
    assert blue[inside].max() < blue[item.labels.colour[:, 0] == 0].min()
    assert item.labels.thirds[0].tolist() == [0, 0]
    assert item.labels.thirds[-1].tolist() == [2, 2]
    assert item.labels.cell[[0, 3, 4, -1]].tolist() == [[0, 0], [0, 0], [0, 1], [2, 3]]


def test_a_pair_is_labelled_frame_by_frame() -> None:
    script = clips.Colours(96, 96, ("red", "blue"), (1.0,))
    frames = np.stack([script.draw(0.0), script.draw(1.0)])
    item = item_of(frames, [script.facts(0.0), script.facts(1.0)])
    assert item.patches.shape == (36, 3 * 2 * 256)
    blue = COLOURS.index("blue") + 1
    assert item.labels.colour.unique(dim=0).tolist() == [[RED, blue]]
    assert (item.labels.characters == IGNORE).all()


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_pairs_differ_between_their_frames_more_often_than_not(split: str) -> None:
    items = [vision_data.pair(stream(split, "pair", 0, i)) for i in range(40)]  # type: ignore[arg-type]
    changed = [bool((i.labels.colour[:, 0] != i.labels.colour[:, 1]).any()) for i in items]
    assert sum(changed) > 20
