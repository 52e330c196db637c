"""Which rows each part of an answer is about, from its text and the facts of its media.

A rule gives spans of an answer's characters with their rows; the tokens that begin in a span
point there. Answers that no rule understands point nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from encoders.video_layout import AUDIO_ROWS_PER_SECOND
from tools.pocket.data.labels import Facts
from tools.pocket.data.sample import Clip, Media, Picture, Sample, Sound, text_of
from tools.pocket.data.words import COLOURS, ORDINALS, PLACES, SHAPES, SIZES
from tools.pocket.train.clip_labels import Meanwhile, meanwhile
from tools.pocket.train.example import Example
from tools.pocket.train.media import Prepared
from tools.pocket.train.pointers import Pointer
from tools.pocket.train.text_targets import Decode, Tokens
from tools.pocket.train.vision_data import MERGE, PATCH, Labels

STAMP = re.compile(r"\b(\d\d):(\d\d)\b")
SPOKEN = ("What is said", "Which words")
SAID_WHEN = "What is said when"
MORE = "Which image has more"
COVERED = 0.25  # of a character, from which on a row shows it
# The longest first: "top left" is neither "top" nor "left".
_PLACES = tuple(sorted(PLACES, key=len, reverse=True))
_WORDS = {"colour": COLOURS, "shape": SHAPES, "size": SIZES, "place": _PLACES}
_KINDS = {kind: re.compile(rf"\b({'|'.join(words)})(?:s|es)?\b") for kind, words in _WORDS.items()}


@dataclass(frozen=True)
class Span:
    """Characters ``start`` to ``stop`` - 1 of an answer (its end is one more) and their rows."""

    start: int
    stop: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Shown:
    """A medium of an example with the positions of its rows."""

    medium: Media
    prepared: Prepared
    vision: list[int]
    audio: list[int]

    @cached_property
    def labels(self) -> Labels:
        """Of all its patches, in the order of its rows."""
        return Labels.concat([item.labels for item in self.prepared.items])

    @cached_property
    def meanwhile(self) -> list[Meanwhile | None]:
        """Of each word of its sound."""
        if isinstance(self.medium, Clip):
            return meanwhile(self.medium)
        return [None] * len(self.medium.words) if isinstance(self.medium, Sound) else []

    @cached_property
    def by_second(self) -> dict[int, tuple[int, ...]]:
        """The rows of what happens in each second in which something does."""
        rows: dict[int, tuple[int, ...]] = {}
        of_row = self.labels.second.view(-1, MERGE**2).amax(dim=1).tolist()
        for position, second in zip(self.vision, of_row, strict=True):
            if second >= 0:
                rows[second] = (*rows.get(second, ()), position)
        return rows


def pointers(
    example: Example,
    sample: Sample,
    shown: Sequence[Shown],
    decode: Decode,
) -> list[Pointer]:
    """The pointers of an example made from ``sample``, whose media are ``shown``."""
    conversation, found = sample.conversation, []
    asked = zip(conversation[::2], conversation[1::2], example.turns, strict=True)
    for question, answer, (first, stop) in asked:
        content = str(answer["content"])
        spans = _spans(text_of(question), content, shown)
        told = Tokens(example.ids[first:stop], decode).spans
        begin = told[-1][0] - len(content)  # before it there may be an empty thought
        for position, (a, b) in enumerate(told, start=first):
            at, after = a - begin, max(b, a + 1) - begin
            rows = {row for s in spans if s.start < after and at < s.stop for row in s.rows}
            if rows:
                found.append(Pointer(position - 1, tuple(sorted(rows))))
    return found


def placed(example: Example, media: Sequence[Media], prepared: Sequence[Prepared]) -> list[Shown]:
    """The media of an example with the positions of their rows."""
    vision, audio = example.vision, example.audio
    found = []
    for medium, ready in zip(media, prepared, strict=True):
        seen = sum(item.patches.shape[0] for item in ready.items) // MERGE**2
        heard = 0 if ready.codes is None else ready.codes.shape[0]
        found.append(Shown(medium, ready, vision[:seen], audio[:heard]))
        vision, audio = vision[seen:], audio[heard:]
    return found


def _spans(question: str, answer: str, shown: Sequence[Shown]) -> list[Span]:
    named = [k for k, ordinal in enumerate(ORDINALS) if f"the {ordinal} image" in question]
    if question.startswith(MORE):
        return counts(question, answer, shown)
    if len(shown) > 1 and not named:
        return []
    about = shown[named[0] if named else 0]
    medium = about.medium
    if isinstance(medium, Sound):
        return words(answer, medium, about.audio)
    if isinstance(medium, Clip):
        if medium.sound is None or not question.startswith(SPOKEN):
            return events(question, answer, about)
        if question.startswith(SAID_WHEN):
            for (*_, word), rows in zip(medium.sound.words, shown_later(about), strict=True):
                if word == answer and rows:
                    return [Span(0, len(answer) + 1, rows)]
        return words(answer, medium.sound, about.audio)
    assert isinstance(medium, Picture)
    if medium.facts.boxes:
        return characters(medium.facts, about)
    return attributes(question, answer, about)


def events(question: str, answer: str, about: Shown) -> list[Span]:
    """Of an answer about what happens in a clip: the rows of each line's second."""
    rows = about.by_second
    stamps = STAMP.findall(answer) or STAMP.findall(question)
    seconds = [60 * int(m) + int(s) for m, s in stamps]
    if not stamps and rows and question.startswith("What happens first"):
        seconds = [min(rows)]
    elif not stamps and rows and question.startswith("What happens last"):
        seconds = [max(rows)]
    if not seconds:
        return []
    return [
        Span(*part, rows.get(seconds[min(line, len(seconds) - 1)], ()))
        for line, part in enumerate(_parts(answer, "\n"))
    ]


def attributes(question: str, answer: str, about: Shown) -> list[Span]:
    """Of an answer about the things of a scene: the rows of the thing that question and answer
    name together, for each thing of a description."""
    parts = _parts(answer, ";")
    return [Span(*part, _named(question, answer[slice(*part)], about)) for part in parts]


def counts(question: str, answer: str, shown: Sequence[Shown]) -> list[Span]:
    """Of an answer that spells a count for each image: the rows of what is counted there."""
    parts = _parts(answer.partition(":")[0], ",")
    return [
        Span(*part, _named(question, "", about)) for about, part in zip(shown, parts, strict=True)
    ]


def characters(facts: Facts, about: Shown) -> list[Span]:
    """Of a printed line: the rows that show each character."""
    _, rows, columns = about.prepared.items[0].grid
    side = PATCH * MERGE
    tall, wide = rows * PATCH / facts.height, columns * PATCH / facts.width
    found = []
    for i, box in enumerate(facts.boxes):
        y = _overlap(box.top * tall, box.bottom * tall, rows // MERGE, side)
        x = _overlap(box.left * wide, box.right * wide, columns // MERGE, side)
        share = np.outer(y, x).reshape(-1)
        shows = np.flatnonzero((share >= COVERED) | (share == share.max()))
        found.append(Span(i, i + 1, tuple(about.vision[row] for row in shows)))
    return found


def words(answer: str, sound: Sound, positions: list[int]) -> list[Span]:
    """Of a transcript, or of one word that is heard: the rows of sound of each word."""
    said = answer.split(" ")
    times = [(start, stop) for start, stop, _ in sound.words]
    if said != [word for *_, word in sound.words]:
        times = [(start, stop) for start, stop, word in sound.words if said == [word]][:1]
        said = said[: len(times)]
    found, at = [], 0
    for word, (start, stop) in zip(said, times, strict=True):
        # A token of a later word begins with the space before it.
        found.append(Span(max(at - 1, 0), at + len(word), tuple(heard(positions, start, stop))))
        at += len(word) + 1
    return found


def shown_later(about: Shown) -> list[tuple[int, ...]]:
    """Of each word of a clip: the rows of what happens meanwhile, if they come after the word's.

    The rows of a pair's sound follow those of its frames: what happens between two pairs is heard
    before it is seen, so only what is seen can be told by both.
    """
    return [
        about.by_second.get(int(found.happening.time), ()) if found and found.later else ()
        for found in about.meanwhile
    ]


def pair_before(about: Shown) -> list[Pointer]:
    """From each row of a clip's frames but the first pair's to its place's row one pair earlier."""
    rows = len(about.vision) // len(about.prepared.items)
    pairs = zip(about.vision[rows:], about.vision, strict=False)
    return [Pointer(later, (earlier,)) for later, earlier in pairs]


def heard(positions: list[int], start: float, stop: float) -> list[int]:
    """Those rows of a sound that hold its seconds ``start`` to ``stop``."""
    first, last = (int(second * AUDIO_ROWS_PER_SECOND) for second in (start, stop))
    return positions[first : last + 1]


def _parts(answer: str, separator: str) -> list[tuple[int, int]]:
    """(start, stop) of the parts of an answer; each begins with its separator, the last includes
    the answer's end."""
    starts = [0, *(match.start() for match in re.finditer(separator, answer))]
    return list(zip(starts, [*starts[1:], len(answer) + 1], strict=True))


def _mentioned(text: str) -> dict[str, set[str]]:
    return {kind: set(pattern.findall(text)) for kind, pattern in _KINDS.items()}


def _named(question: str, told: str, about: Shown) -> tuple[int, ...]:
    """The rows of the one thing, or kind of thing, that both texts name; what is told counts more.
    None where they name several."""
    said, asked = _mentioned(told), _mentioned(question)
    wanted = {kind: said[kind] or asked[kind] for kind in _KINDS}
    if any(len(values) > 1 for values in wanted.values()):
        return ()
    found = _matching(about.labels, {kind: v.pop() for kind, v in wanted.items() if v})
    return tuple(about.vision[row] for row in found)


def _matching(labels: Labels, wanted: dict[str, str]) -> list[int]:
    """Rows with a patch of the thing that has these attributes, at its place if it is there."""
    if not wanted.keys() & {"colour", "shape"}:
        return []
    patches = torch.ones(len(labels.event), dtype=torch.bool)
    for kind in wanted.keys() - {"place"}:
        patches &= getattr(labels, kind)[:, 0] == _WORDS[kind].index(wanted[kind]) + 1
    if "place" in wanted:
        cell = divmod(PLACES.index(wanted["place"]), 3)
        there = patches & (labels.thirds == torch.tensor(cell)).all(dim=1)
        patches = there if there.any() else patches
    return torch.nonzero(patches.view(-1, MERGE**2).any(dim=1))[:, 0].tolist()


def _overlap(low: float, high: float, count: int, side: int) -> np.ndarray:
    """Share of ``low``..``high`` in each of ``count`` cells of ``side`` pixels."""
    edges = np.arange(count + 1) * float(side)
    inside = np.minimum(edges[1:], high) - np.maximum(edges[:-1], low)
    return np.maximum(inside, 0.0) / max(high - low, 1e-6)
