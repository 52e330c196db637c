"""Questions about one scene and their true answers, in several phrasings."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from tools.pocket.data import scenes
from tools.pocket.data.sample import Sample, Stream, ask_all
from tools.pocket.data.scenes import Scene, Thing
from tools.pocket.data.words import COLOURS, NUMBERS, PLACES, SHAPES

Pair = tuple[str, str]
DESCRIBE = ("Describe the image.", "What is in the image?", "What do you see?", "What is shown?")


def plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"


def caption(scene: Scene) -> str:
    """All things in raster order, place before attributes: the reader finds, then names."""
    return "; ".join(f"{thing.place}: {thing.name}" for thing in scene.in_order()) + "."


def describe(scene: Scene, rng: random.Random) -> Pair:
    return rng.choice(DESCRIBE), caption(scene)


def _unique(scene: Scene, key: Callable[[Thing], object]) -> list[Thing]:
    seen = Counter(key(thing) for thing in scene.things)
    return [thing for thing in scene.things if seen[key(thing)] == 1]


def colour(scene: Scene, rng: random.Random) -> Pair | None:
    things = _unique(scene, lambda t: t.shape)
    if not things:
        return None
    thing = rng.choice(things)
    form = rng.choice(("What colour is the {}?", "Which colour does the {} have?"))
    return form.format(thing.shape), thing.colour


def shape(scene: Scene, rng: random.Random) -> Pair | None:
    things = _unique(scene, lambda t: t.colour)
    if not things:
        return None
    thing = rng.choice(things)
    form = rng.choice(("What shape is the {} object?", "Which shape is {}?"))
    return form.format(thing.colour), thing.shape


def size(scene: Scene, rng: random.Random) -> Pair | None:
    things = _unique(scene, lambda t: (t.colour, t.shape))
    if not things:
        return None
    thing = rng.choice(things)
    return f"Is the {thing.colour} {thing.shape} small or large?", thing.size


def at_place(scene: Scene, rng: random.Random) -> Pair:
    taken = {thing.place: thing for thing in scene.things}
    place = rng.choice(PLACES) if rng.random() < 0.25 else rng.choice(list(taken))
    where = f"in the {place}" if place == "centre" else f"at the {place}"
    form = rng.choice(("What is {}?", "Which object is {}?", "Look {}. What is there?"))
    return form.format(where), taken[place].name if place in taken else "nothing"


def place(scene: Scene, rng: random.Random) -> Pair | None:
    things = _unique(scene, lambda t: (t.colour, t.shape))
    if not things:
        return None
    thing = rng.choice(things)
    form = rng.choice(("Where is the {}?", "In which place is the {}?"))
    return form.format(f"{thing.colour} {thing.shape}"), thing.place


def count(scene: Scene, rng: random.Random) -> Pair:
    kind = rng.random()
    if kind < 0.4:
        form = rng.choice(("How many objects are there?", "Count the objects."))
        return form, NUMBERS[len(scene.things)]
    if kind < 0.7:
        wanted = rng.choice(scene.things).colour if rng.random() < 0.8 else rng.choice(COLOURS)
        total = sum(thing.colour == wanted for thing in scene.things)
        return f"How many {wanted} objects are there?", NUMBERS[total]
    wanted = rng.choice(scene.things).shape if rng.random() < 0.8 else rng.choice(SHAPES)
    total = sum(thing.shape == wanted for thing in scene.things)
    return f"How many {plural(wanted)} are there?", NUMBERS[total]


def exists(scene: Scene, rng: random.Random) -> Pair:
    if rng.random() < 0.5:
        thing = rng.choice(scene.things)
        return f"Is there a {thing.colour} {thing.shape}?", "yes"
    wanted = (rng.choice(COLOURS), rng.choice(SHAPES))
    found = any((thing.colour, thing.shape) == wanted for thing in scene.things)
    return f"Is there a {wanted[0]} {wanted[1]}?", "yes" if found else "no"


def side(scene: Scene, rng: random.Random) -> Pair | None:
    things = _unique(scene, lambda t: t.shape)
    if len(things) < 2:
        return None
    a, b = rng.sample(things, 2)
    (row_a, column_a), (row_b, column_b) = (divmod(PLACES.index(t.place), 3) for t in (a, b))
    words = []
    if column_a != column_b:
        words += [("left of", column_a < column_b), ("right of", column_a > column_b)]
    if row_a != row_b:
        words += [("above", row_a < row_b), ("below", row_a > row_b)]
    word, true = rng.choice(words)
    return f"Is the {a.shape} {word} the {b.shape}?", "yes" if true else "no"


KINDS: tuple[tuple[Callable[[Scene, random.Random], Pair | None], float], ...] = (
    *((describe, 3.0), (colour, 1.0), (shape, 1.0), (size, 1.0), (at_place, 1.5)),
    *((place, 1.0), (count, 1.5), (exists, 0.7), (side, 0.7)),
)


def questions(scene: Scene, rng: random.Random, how_many: int) -> list[Pair]:
    """Different kinds of questions, each answered; fewer where the scene allows no more."""
    makers = [maker for maker, _ in KINDS]
    weights = [weight for _, weight in KINDS]
    pairs: dict[str, str] = {}
    for _ in range(how_many * 4):
        pair = rng.choices(makers, weights)[0](scene, rng)
        if pair is not None and pair[1] not in pairs.values():
            pairs.setdefault(*pair)
        if len(pairs) == how_many:
            break
    return list(pairs.items())


def look(stream: Stream, turns: int = 3) -> Sample:
    """A scene and up to ``turns`` questions about it. Skill "look"."""
    scene = scenes.random_scene(stream)
    messages, answer = ask_all([0], questions(scene, stream.rng, turns), stream.rng.random() < 0.3)
    return Sample(
        "look",
        messages,
        answer,
        (scenes.picture(scene, stream),),
        score="attributes",
        detail={"size": (scene.height, scene.width), "things": len(scene.things)},
    )
