"""Labels of what happens in a clip stand at the thing, in the pair and second of its event."""

from __future__ import annotations

import numpy as np
import torch

from tests.tools.test_pocket_clips import script_of
from tools.pocket.data import clips
from tools.pocket.data.clip_questions import tell
from tools.pocket.data.clips import clip_of
from tools.pocket.data.labels import EVENTS, IGNORE
from tools.pocket.data.sample import Clip, stream
from tools.pocket.data.words import COLOURS, SHAPES
from tools.pocket.train.clip_labels import KINDS, SECONDS, EventHead, with_events
from tools.pocket.train.vision_data import Item, Labels, item_of


def items_of(clip: Clip) -> tuple[Item, ...]:
    times = clip.times()
    frames, facts = clip.frames(times), [clip.facts(t) for t in times]
    pairs = [item_of(frames[i : i + 2], facts[i : i + 2]) for i in range(0, len(times), 2)]
    return with_events(pairs, [float(t) for t in times], clip.happenings)


def test_each_event_is_labelled_in_its_pair_with_its_second_and_nowhere_else() -> None:
    for index in range(30):
        seconds = (4, 8, 12)[index % 3]
        script, times = script_of(index, seconds)
        items = items_of(clip_of(script, seconds, 8))
        wanted, told = set(), set()
        for number, event in enumerate(script.events):
            kind = EVENTS.index(event.verb.split(" ")[0] if "turns" in event.verb else event.verb)
            pair = int(np.searchsorted(times, event.time)) // 2
            wanted.add((pair, kind + 1, event.second))
            told.add((event.second, number))
        found = set()
        for pair, item in enumerate(items):
            labels = item.labels
            happens = labels.event > 0
            assert (labels.second[~happens] == IGNORE).all()
            assert set(labels.within.tolist()) <= {0, *labels.event.tolist()}
            seconds_there = labels.second[happens].tolist()
            assert set(zip(seconds_there, labels.ordinal[happens].tolist(), strict=True)) <= told
            both = zip(labels.event[happens].tolist(), seconds_there, strict=True)
            found |= {(pair, kind, second) for kind, second in both}
        assert found <= wanted
        # Two events may fall on one thing in one pair; the later one is labelled.
        assert len(found) >= len({pair for pair, _, _ in wanted})


def test_a_move_stands_where_it_led_and_where_it_began_nothing_is_told() -> None:
    for index in range(100):
        script, times = script_of(index)
        if len(script.events) != 1 or not script.events[0].verb.startswith("moves"):
            continue
        (event,) = script.events
        frame = int(np.searchsorted(times, event.time))
        items = items_of(clip_of(script, 8, 8))
        shape = SHAPES.index(script.things[event.thing].shape) + 1
        before = items[(frame - 1) // 2].labels.shape[:, (frame - 1) % 2] == shape
        after = items[frame // 2].labels.shape[:, frame % 2] == shape
        labels = items[frame // 2].labels
        assert torch.equal(labels.event > 0, after)
        assert torch.equal(labels.event == IGNORE, before & ~after)
        assert torch.equal(labels.second >= 0, after)
        assert (before & ~after).any()
        return
    raise AssertionError("no script with one thing that only moves")


def test_a_colour_that_changes_changes_everywhere() -> None:
    script = clips.Colours(96, 128, ("red", "blue"), (3.4,))
    items = items_of(clip_of(script, 8, 8))
    kinds = [set(item.labels.event.tolist()) for item in items]
    assert kinds == [{0}, {0}, {EVENTS.index("turns") + 1}, {0}]
    assert set(items[2].labels.second.tolist()) == {3}
    assert set(items[2].labels.within.tolist()) == {0}  # it turns between two pairs
    (*_, item) = items_of(clip_of(clips.Colours(96, 128, ("red", "blue"), (7.1,)), 8, 8))
    assert torch.equal(item.labels.within, item.labels.event)
    assert item.labels.within.any()
    assert set(map(tuple, items[2].labels.noun.tolist())) == {(0, 0, COLOURS.index("blue") + 1)}


def test_an_event_knows_its_thing_as_it_is_told() -> None:
    turned = 0
    for index in range(40):
        script, _ = script_of(index)
        told = [line.split(" ", 4)[2:] for line in tell(script).splitlines()]  # "00:03 the red ..."
        for happening, (was, shape, verb) in zip(script.happenings, told, strict=True):
            assert happening.was == COLOURS.index(was) + 1
            assert happening.shape == SHAPES.index(shape) + 1
            becomes = verb.removeprefix("turns ") if verb.startswith("turns") else ""
            assert happening.becomes == (COLOURS.index(becomes) + 1 if becomes else 0)
            turned += bool(becomes)
        (happening, *others) = script.happenings
        if others:
            continue
        nouns = torch.cat([item.labels.noun for item in items_of(clip_of(script, 8, 8))])
        found = set(map(tuple, nouns.tolist())) - {(IGNORE,) * 3}
        assert found == {(happening.was, happening.shape, happening.becomes)}
    assert turned > 5


def test_the_head_learns_the_labels_and_ignores_pictures() -> None:
    torch.manual_seed(0)
    source = stream("train", "events", 0, 0)
    clip = clip_of(clips.random_script(source, np.arange(8.0)), 8, 8)
    labels = Labels.concat([item.labels for item in items_of(clip)])
    rows = torch.randn(len(labels.event) // 4, 16)
    head = EventHead(16)
    optim = torch.optim.Adam(head.parameters(), 0.03)
    first = head.loss(rows, labels)
    assert first.item() > 0.5 * (np.log(KINDS) + np.log(SECONDS))
    for _ in range(200):
        optim.zero_grad()
        head.loss(rows, labels).backward()
        optim.step()
    assert head.loss(rows, labels).item() < 0.2 * first.item()
    still = item_of(np.zeros((1, 64, 64, 3), np.uint8), [clip.facts(0.0)]).labels
    assert head.loss(torch.randn(4, 16), still).item() == 0.0
