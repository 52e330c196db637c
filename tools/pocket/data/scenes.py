"""Drawn scenes: coloured shapes at the nine places of a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from tools.pocket.data import canvas
from tools.pocket.data.canvas import RGB
from tools.pocket.data.labels import Facts
from tools.pocket.data.sample import Picture, Stream
from tools.pocket.data.words import COLOURS, PLACES, SHAPES, SIZES

PAINT: dict[str, RGB] = {
    "red": (215, 30, 35),
    "green": (35, 155, 60),
    "blue": (35, 70, 210),
    "yellow": (245, 220, 40),
    "orange": (245, 135, 20),
    "purple": (140, 45, 165),
    "black": (18, 18, 20),
    "white": (246, 246, 246),
}
SPREAD = 16
COUNTS = (1, 1, 2, 2, 3, 3, 4, 5)
# Radius as a share of the smaller side of a cell; between the two sizes is a gap.
RADIUS = {"small": (0.22, 0.29), "large": (0.40, 0.49)}


@dataclass(frozen=True)
class Thing:
    """An object of a scene; centre and radius in pixels, angle in degrees."""

    colour: str
    shape: str
    size: str
    place: str
    x: float
    y: float
    radius: float
    angle: float
    rgb: RGB
    outline: bool = False

    @property
    def name(self) -> str:
        return f"{self.size} {self.colour} {self.shape}"

    @property
    def classes(self) -> tuple[int, int, int]:
        """1-based (colour, shape, size)."""
        return (
            COLOURS.index(self.colour) + 1,
            SHAPES.index(self.shape) + 1,
            SIZES.index(self.size) + 1,
        )


@dataclass(frozen=True)
class Scene:
    height: int
    width: int
    base: RGB
    things: tuple[Thing, ...]

    def in_order(self) -> list[Thing]:
        """Raster order: place by place, from top left to bottom right."""
        return sorted(self.things, key=lambda thing: PLACES.index(thing.place))


def outline(shape: str, radius: float, angle: float) -> list[tuple[float, float]]:
    """Corners around (0, 0); a circle is not a polygon and has none."""
    if shape == "square":
        corners = [(-0.84, -0.84), (0.84, -0.84), (0.84, 0.84), (-0.84, 0.84)]
    elif shape == "triangle":
        corners = [(0.0, -1.0), (0.92, 0.75), (-0.92, 0.75)]
    elif shape == "diamond":
        corners = [(0.0, -1.05), (0.68, 0.0), (0.0, 1.05), (-0.68, 0.0)]
    elif shape == "cross":
        a = 0.34
        corners = [(-a, -1), (a, -1), (a, -a), (1, -a), (1, a), (a, a)]
        corners += [(-x, -y) for x, y in corners]
    elif shape == "star":
        steps = [(k * math.pi / 5, 1.05 if k % 2 == 0 else 0.44) for k in range(10)]
        corners = [(r * math.sin(t), -r * math.cos(t)) for t, r in steps]
    else:
        raise ValueError(f"{shape} has no corners")
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return [((x * cos - y * sin) * radius, (x * sin + y * cos) * radius) for x, y in corners]


def random_thing(stream: Stream, height: int, width: int, place: str) -> Thing:
    """A thing at a place of the 3 x 3 grid, somewhat off the middle of its cell."""
    rng = stream.rng
    row, column = divmod(PLACES.index(place), 3)
    cell_h, cell_w = height / 3, width / 3
    size = rng.choice(SIZES)
    radius = rng.uniform(*RADIUS[size]) * min(cell_h, cell_w)
    reach_x, reach_y = (max(side / 2 - radius, 0) for side in (cell_w, cell_h))
    colour, shape = rng.choice(COLOURS), rng.choice(SHAPES)
    r, g, b = (min(255, max(0, v + rng.randint(-SPREAD, SPREAD))) for v in PAINT[colour])
    return Thing(
        colour,
        shape,
        size,
        place,
        (column + 0.5) * cell_w + rng.uniform(-1, 1) * min(reach_x, cell_w * 0.2),
        (row + 0.5) * cell_h + rng.uniform(-1, 1) * min(reach_y, cell_h * 0.2),
        radius,
        rng.uniform(-12, 12) if rng.random() < 0.5 else 0.0,
        (r, g, b),
        rng.random() < 0.12,
    )


def random_scene(
    stream: Stream,
    size: tuple[int, int] | None = None,
    counts: Sequence[int] = (1, 1, 2, 2, 3, 3, 4, 5),
) -> Scene:
    """One to five things at different places, on a canvas of 64 to 320 pixels a side."""
    height, width = size or canvas.canvas_size(stream, 64, 320)
    places = stream.rng.sample(PLACES, stream.rng.choice(counts))
    things = tuple(random_thing(stream, height, width, place) for place in places)
    base = canvas.background_colour(stream, [thing.rgb for thing in things])
    return Scene(height, width, base, things)


def paint(image: Image.Image, thing: Thing, smooth: bool) -> None:
    """Draw a thing on an RGB picture; ``smooth`` draws it at twice the size first."""
    edge = (20, 20, 20) if sum(thing.rgb) > 240 else (235, 235, 235)
    line = edge if thing.outline else None
    if not smooth:
        _draw(ImageDraw.Draw(image), thing, (0.0, 0.0), 1.0, thing.rgb, line)
        return
    reach = thing.radius * 1.1 + 1
    left, top = max(int(thing.x - reach), 0), max(int(thing.y - reach), 0)
    right = min(int(thing.x + reach) + 1, image.width)
    bottom = min(int(thing.y + reach) + 1, image.height)
    part = image.crop((left, top, right, bottom))
    double = part.resize((part.width * 2, part.height * 2), Image.Resampling.NEAREST)
    _draw(ImageDraw.Draw(double), thing, (left, top), 2.0, thing.rgb, line)
    image.paste(double.reduce(2), (left, top))


def _draw(
    draw: ImageDraw.ImageDraw,
    thing: Thing,
    origin: tuple[float, float],
    scale: float,
    fill: RGB | int,
    line: RGB | None,
) -> None:
    x, y = ((a - b) * scale for a, b in zip((thing.x, thing.y), origin, strict=True))
    radius = thing.radius * scale
    if thing.shape == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill, line)
    else:
        corners = outline(thing.shape, radius, thing.angle)
        draw.polygon([(x + dx, y + dy) for dx, dy in corners], fill, line)


def facts(scene: Scene) -> Facts:
    """Which thing each pixel shows, and the things' classes."""
    ids = Image.new("L", (scene.width, scene.height))
    draw = ImageDraw.Draw(ids)
    for number, thing in enumerate(scene.things, start=1):
        _draw(draw, thing, (0.0, 0.0), 1.0, number, None)
    attributes = [thing.classes for thing in scene.things]
    return Facts(scene.height, scene.width, np.asarray(ids), attributes)


def render(scene: Scene, stream: Stream) -> Image.Image:
    """The scene on its background, with smooth edges on half of the pictures."""
    smooth = stream.rng.random() < 0.5
    image = canvas.background(stream, scene.height, scene.width, scene.base)
    for thing in scene.things:
        paint(image, thing, smooth)
    return image


def picture(scene: Scene, stream: Stream) -> Picture:
    """The worn picture of a scene with its facts."""
    return Picture(canvas.worn(stream, render(scene, stream)), facts(scene))
