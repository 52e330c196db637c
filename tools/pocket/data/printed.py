"""Printed lines of characters on a background: drawing and facts."""

from __future__ import annotations

import string
from dataclasses import dataclass, replace

from PIL import Image, ImageDraw

from tools.pocket.data import canvas, fonts
from tools.pocket.data.canvas import RGB
from tools.pocket.data.labels import CharacterBox, Facts
from tools.pocket.data.sample import Picture, Stream
from tools.pocket.data.words import PRINT_HELDOUT, PRINT_TRAIN

MAX_CHARACTERS = 6
LOW_SIZE, HIGH_SIZE = 13, 40
BOLD_SIZE = 24  # from which on a pixel more leaves a font readable
STRETCH = (0.85, 1.2)


@dataclass(frozen=True)
class Line:
    """Text of letters and digits at the drawing point (x, y); ``size`` is pixels per em."""

    text: str
    font: str
    size: int
    x: float
    y: float

    def boxes(self) -> list[CharacterBox]:
        face = fonts.font(self.font, self.size)
        top, bottom = fonts.capital_band(self.font, self.size)
        edges = [self.x + face.getlength(self.text[:i]) for i in range(len(self.text) + 1)]
        return [
            CharacterBox(character, left, right, self.y + top, self.y + bottom, number)
            for number, (character, left, right) in enumerate(
                zip(self.text, edges, edges[1:], strict=False)
            )
        ]


def random_text(stream: Stream) -> str:
    """One to six characters: digits, a word, or letters; in capitals more often than not."""
    rng = stream.rng
    if rng.random() < 0.3:
        return "".join(rng.choice(string.digits) for _ in range(_length(stream)))
    if rng.random() < 0.45:
        text = stream.pick(PRINT_TRAIN, PRINT_HELDOUT)
    else:
        text = "".join(rng.choice(string.ascii_lowercase) for _ in range(_length(stream)))
    case = rng.random()
    return text.upper() if case < 0.6 else text if case < 0.85 else text.capitalize()


def _length(stream: Stream) -> int:
    """In training rather long: the last characters are the ones that are hard to number."""
    lengths = [stream.rng.randint(1, MAX_CHARACTERS) for _ in range(1 + (stream.split == "train"))]
    return max(lengths)


def ink(stream: Stream) -> tuple[RGB, RGB]:
    """Background and text colours that stand apart."""
    rng = stream.rng
    text: RGB
    if rng.random() < 0.5:
        grey = rng.randint(0, 60) if rng.random() < 0.6 else rng.randint(215, 255)
        text = (grey, grey, grey)
    else:
        text = (rng.randint(0, 255), rng.randint(0, 255), rng.randint(0, 255))
    while True:
        base = canvas.background_colour(stream, [text], gap=170.0)
        if abs(sum(base) - sum(text)) > 210:
            return base, text
        text = rng.choice(((0, 0, 0), (255, 255, 255)))


def print_lines(stream: Stream, height: int, width: int, lines: list[Line]) -> Picture:
    """The worn picture of the lines with its facts; in training often bolder, wider or narrower,
    which makes many fonts of few."""
    base, colour = ink(stream)
    image = canvas.background(stream, height, width, base)
    draw = ImageDraw.Draw(image)
    rng, changed = stream.rng, stream.split == "train"
    boxes: list[CharacterBox] = []
    for line in lines:
        face = fonts.font(line.font, line.size)
        bold = int(changed and line.size >= BOLD_SIZE and rng.random() < 0.15)
        draw.text((line.x, line.y), line.text, colour, face, stroke_width=bold)
        boxes += line.boxes()
    if changed and rng.random() < 0.4:
        wide = round(width * rng.uniform(*STRETCH))
        image = image.resize((wide, height), Image.Resampling.BICUBIC)
        boxes = [
            replace(box, left=box.left * wide / width, right=box.right * wide / width)
            for box in boxes
        ]
        width = wide
    return Picture(canvas.worn(stream, image), Facts(height, width, boxes=boxes))


def line_fits(text: str, name: str, size: int) -> tuple[float, float]:
    """Width and height that a line needs."""
    face = fonts.font(name, size)
    ascent, descent = face.getmetrics()
    return face.getlength(text), float(ascent + descent)


def one_line(
    stream: Stream,
    text: str,
    low: float = LOW_SIZE,
    high: float = HIGH_SIZE,
    names: tuple[str, ...] = (),
) -> tuple[Picture, float]:
    """A picture of one line at a random place, and its pixels per em after the model's resize."""
    rng = stream.rng
    name = rng.choice(names or fonts.font_names(stream.split))
    while True:
        height, width = canvas.canvas_size(stream, 48, 256, shortest=64)
        scale = (
            canvas.resized(height, width)[0] / height,
            canvas.resized(height, width)[1] / width,
        )
        wanted = rng.uniform(low, high)
        size = round(wanted / scale[0])
        shown = size * min(scale)
        if size < 6 or not low <= shown <= high:
            continue
        wide, tall = line_fits(text, name, size)
        if wide + 4 <= width and tall + 2 <= height:
            break
    line = Line(text, name, size, rng.uniform(2, width - wide - 2), rng.uniform(0, height - tall))
    return print_lines(stream, height, width, [line]), shown


def page(stream: Stream, names: tuple[str, ...] = ()) -> Picture:
    """A picture full of short texts in one or several fonts: many characters for the tower."""
    rng = stream.rng
    height, width = canvas.canvas_size(stream, 96, 288)
    lines: list[Line] = []
    y = rng.uniform(0, 6)
    while True:
        name = rng.choice(names or fonts.font_names(stream.split))
        size = rng.randint(LOW_SIZE, HIGH_SIZE)
        x, tallest = rng.uniform(1, 12), 0.0
        while True:
            text = random_text(stream)
            wide, tall = line_fits(text, name, size)
            if x + wide > width or y + tall > height:
                break
            lines.append(Line(text, name, size, x, y))
            x, tallest = x + wide + size * rng.uniform(0.4, 1.2), tall
        if not tallest:
            break
        y += tallest * rng.uniform(0.85, 1.2)
    return print_lines(stream, height, width, lines)
