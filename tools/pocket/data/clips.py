"""Short clips as scripts: things that appear, vanish, move or change colour at known seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from PIL import Image, ImageDraw

from tools.pocket.data import canvas, scenes
from tools.pocket.data.canvas import RGB
from tools.pocket.data.labels import Facts, Happening
from tools.pocket.data.sample import Clip, Sound, Stream
from tools.pocket.data.scenes import Scene, Thing
from tools.pocket.data.words import COLOURS, PLACES, SHAPES

# At 8 s and more the server takes one frame a second; at 4 s its minimum of 8 frames, two a
# second. In both a frame's second follows from its pair's timestamp.
SECONDS = (4, 8, 8, 8, 8, 10, 12, 14, 16)
STEPS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
GLIDE = 0.15


def stamp(time: float) -> str:
    """``MM:SS``, as the model's own timestamps."""
    return f"{int(time) // 60:02d}:{int(time) % 60:02d}"


@dataclass(frozen=True)
class Event:
    """At ``time`` seconds thing number ``thing`` does ``verb`` ("appears", "moves left", ...).

    ``second`` is the whole second of the event, and of the first sampled frame that shows it.
    """

    time: float
    verb: str
    thing: int

    @property
    def second(self) -> int:
        return int(self.time)

    @property
    def stamp(self) -> str:
        return stamp(self.time)


@dataclass(frozen=True)
class Script:
    """A clip's things as they are at first, its events in order, and how it is drawn."""

    height: int
    width: int
    base: RGB
    things: tuple[Thing, ...]
    events: tuple[Event, ...]
    grain: tuple[float, int]
    seed: Stream

    def things_at(self, time: float) -> list[Thing]:
        """The things that are there at ``time``, with their places and colours of then."""
        shown: dict[int, Thing | None] = {
            i: None if self._hidden_first(i) else thing for i, thing in enumerate(self.things)
        }
        for event in self.events:
            thing = shown[event.thing] or self.things[event.thing]
            if event.verb.startswith("moves") and time >= event.time - GLIDE:
                shown[event.thing] = _moved(self, thing, event, time)
            elif time >= event.time:
                shown[event.thing] = _changed(thing, event)
        return [thing for thing in shown.values() if thing is not None]

    def before(self, event: Event) -> Thing:
        """The thing of an event as it was until then; one that appears, as it does."""
        thing = self.things[event.thing]
        there = self.things_at(event.time - GLIDE - 0.01)
        return next((shown for shown in there if shown.shape == thing.shape), thing)

    def _hidden_first(self, number: int) -> bool:
        verbs = [event.verb for event in self.events if event.thing == number]
        return bool(verbs) and verbs[0] == "appears"

    @cached_property
    def _background(self) -> Image.Image:
        return canvas.background(self.seed.fork("background"), self.height, self.width, self.base)

    def draw(self, time: float) -> np.ndarray:
        """The frame uint8 [H, W, 3] at ``time``; the same time gives the same frame."""
        image = self._background.copy()
        for thing in self.things_at(time):
            scenes.paint(image, thing, smooth=True)
        sigma, start = self.grain
        pixels = np.asarray(image)
        return canvas.grainy(pixels, sigma, start + int(time * 1000)) if sigma else pixels

    @property
    def happenings(self) -> tuple[Happening, ...]:
        things = [(event, self.before(event)) for event in self.events]
        return tuple(
            Happening.of(event.time, event.verb, SHAPES.index(thing.shape) + 1, thing.colour)
            for event, thing in things
        )

    def facts(self, time: float) -> Facts:
        return scenes.facts(Scene(self.height, self.width, self.base, tuple(self.things_at(time))))


def _changed(thing: Thing, event: Event) -> Thing | None:
    if event.verb == "disappears":
        return None
    if event.verb.startswith("turns "):
        colour = event.verb.removeprefix("turns ")
        return replace(thing, colour=colour, rgb=scenes.PAINT[colour])
    return thing


def _moved(script: Script, thing: Thing, event: Event, time: float) -> Thing:
    rows, columns = STEPS[event.verb.removeprefix("moves ")]
    row, column = divmod(PLACES.index(thing.place), 3)
    done = min(1.0, (time - event.time + GLIDE) / GLIDE)
    return replace(
        thing,
        place=PLACES[(row + rows) * 3 + column + columns] if done == 1.0 else thing.place,
        x=thing.x + columns * script.width / 3 * done,
        y=thing.y + rows * script.height / 3 * done,
    )


def _event_times(stream: Stream, times: np.ndarray, count: int) -> list[float]:
    """Times such that the second of each is that of the first sampled frame that shows it.

    No two fall on the same sampled frame, and none on the first.
    """
    chosen = sorted(stream.rng.sample(range(1, len(times)), count))
    found = []
    for k in chosen:
        earliest = max(float(times[k - 1]) + 0.35 * float(times[k] - times[k - 1]), int(times[k]))
        found.append(stream.rng.uniform(min(earliest, float(times[k])), float(times[k])))
    return found


def _verbs(stream: Stream, thing: Thing, taken: set[str], shown: bool, busy: int) -> list[str]:
    if not shown:
        return ["appears"]
    row, column = divmod(PLACES.index(thing.place), 3)
    moves = []
    for name, (rows, columns) in STEPS.items():
        r, c = row + rows, column + columns
        if 0 <= r <= 2 and 0 <= c <= 2 and PLACES[r * 3 + c] not in taken:
            moves.append(f"moves {name}")
    turn = stream.rng.choice([colour for colour in COLOURS if colour != thing.colour])
    verbs = [f"turns {turn}", *([stream.rng.choice(moves)] if moves else [])]
    return ["disappears", *verbs * busy]


def random_script(stream: Stream, times: np.ndarray, busy: int = 1) -> Script:
    """One to three things of different colours and shapes, and one to four events. A thing moves
    or turns another colour ``busy`` times as often as it disappears."""
    rng = stream.rng
    height, width = (rng.randrange(96, 162, 2) for _ in range(2))
    count = rng.choice((1, 2, 2, 3))
    things: list[Thing] = []
    for place in rng.sample(PLACES, count):
        while True:
            thing = scenes.random_thing(stream, height, width, place)
            if all(thing.colour != t.colour and thing.shape != t.shape for t in things):
                break
        things.append(replace(thing, outline=False))
    events: list[Event] = []
    now: dict[int, Thing] = dict(enumerate(things))
    hidden = {i for i in now if rng.random() < 0.45}
    gone: set[int] = set()
    for time in _event_times(stream, times, rng.choice((1, 2, 2, 3, 3))):
        free = [i for i in now if i not in gone]
        if not free:
            break
        number = rng.choice([i for i in free if i in hidden] or free)
        # Hidden things keep their place, so nothing moves onto it.
        taken = {thing.place for i, thing in now.items() if i not in gone}
        verb = rng.choice(_verbs(stream, now[number], taken, number not in hidden, busy))
        event = Event(time, verb, number)
        events.append(event)
        hidden.discard(number)
        if verb == "disappears":
            gone.add(number)
        elif verb.startswith("turns"):
            now[number] = replace(now[number], colour=verb.removeprefix("turns "))
        elif verb.startswith("moves"):
            rows, columns = STEPS[verb.removeprefix("moves ")]
            row, column = divmod(PLACES.index(now[number].place), 3)
            now[number] = replace(now[number], place=PLACES[(row + rows) * 3 + column + columns])
    # A thing that was meant to appear and never did is left out.
    used = [i for i in range(count) if i not in hidden]
    renumber = {old: new for new, old in enumerate(used)}
    kept = tuple(replace(event, thing=renumber[event.thing]) for event in events)
    colours = [scenes.PAINT[thing.colour] for thing in things]
    colours += [scenes.PAINT[e.verb.removeprefix("turns ")] for e in kept if "turns" in e.verb]
    return Script(
        height,
        width,
        canvas.background_colour(stream, colours, gap=80.0),
        tuple(things[i] for i in used),
        kept,
        (rng.choice((0.0, rng.uniform(2, 8))), rng.randrange(1 << 18)),
        stream,
    )


@dataclass(frozen=True)
class Colours:
    """A clip that is one colour all over, and another from each change on."""

    height: int
    width: int
    names: tuple[str, ...]
    changes: tuple[float, ...]

    def _number(self, time: float) -> int:
        return sum(time >= change for change in self.changes)

    def draw(self, time: float) -> np.ndarray:
        rgb = scenes.PAINT[self.names[self._number(time)]]
        return np.full((self.height, self.width, 3), rgb, np.uint8)

    @property
    def happenings(self) -> tuple[Happening, ...]:
        changes = zip(self.changes, self.names[1:], strict=True)
        return tuple(Happening.of(change, f"turns {name}", -1) for change, name in changes)

    def facts(self, time: float) -> Facts:
        image = Image.new("L", (self.width, self.height))
        ImageDraw.Draw(image).rectangle((0, 0, self.width, self.height), 1)
        colour = COLOURS.index(self.names[self._number(time)]) + 1
        return Facts(self.height, self.width, np.asarray(image), [(colour, -1, -1)])


def random_colours(stream: Stream, times: np.ndarray) -> Colours:
    """Two or three full colours one after the other."""
    rng = stream.rng
    count = rng.choice((2, 2, 3))
    height, width = (rng.randrange(96, 162, 2) for _ in range(2))
    changes = tuple(_event_times(stream, times, count - 1))
    return Colours(height, width, tuple(rng.sample(COLOURS, count)), changes)


def clip_of(script: Script | Colours, seconds: int, fps: int, sound: Sound | None = None) -> Clip:
    return Clip(script.draw, script.facts, fps, seconds * fps, sound, script.happenings)
