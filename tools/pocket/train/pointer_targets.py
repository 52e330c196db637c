"""Which rows each part of an answer is about, from its text and the facts of its media.

A rule gives spans of an answer's characters with their rows; the tokens that begin in a span
point there. Answers that no rule understands point nowhere. Where an answer tells one item after
the other, its tokens are also told the number of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from encoders.video_layout import AUDIO_ROWS_PER_SECOND
from tools.pocket.data.clip_questions import WHAT
from tools.pocket.data.labels import Facts
from tools.pocket.data.sample import Clip, Picture, Sample, Sound, text_of
from tools.pocket.data.words import ORDINALS, PLACES
from tools.pocket.train.example import Example
from tools.pocket.train.mentioned import WORDS, mentioned
from tools.pocket.train.pointers import Pointer
from tools.pocket.train.shown import Shown
from tools.pocket.train.text_targets import Decode, Tokens
from tools.pocket.train.thing_counts import COUNTING, MORE, last_counted
from tools.pocket.train.vision_data import MERGE, PATCH, Labels

STAMP = re.compile(r"\b(\d\d):(\d\d)\b")
SPOKEN = ("What is said", "Which words")
SAID_WHEN = "What is said when"
COVERED = 0.25  # of a character, from which on a row shows it
NOWHERE = -1  # a row that stands for the last token of the question
Numbers = list[tuple[int, int]]


@dataclass(frozen=True)
class Span:
    """Characters ``start`` to ``stop`` - 1 of an answer (its end is one more), their rows, and the
    ``number`` of the item that they tell where that follows from what was told before."""

    start: int
    stop: int
    rows: tuple[int, ...]
    number: int | None = None


def pointers(
    example: Example,
    sample: Sample,
    shown: Sequence[Shown],
    decode: Decode,
) -> tuple[list[Pointer], Numbers]:
    """The pointers of an example made from ``sample``, whose media are ``shown``; and (position,
    number of the item that the next token tells, its end one more) of answers that count theirs."""
    conversation, found = sample.conversation, list[Pointer]()
    numbers: Numbers = []
    asked = zip(conversation[::2], conversation[1::2], example.turns, strict=True)
    for question, answer, (first, stop) in asked:
        content = str(answer["content"])
        spans = _spans(text_of(question), content, shown)
        told = Tokens(example.ids[first:stop], decode).spans
        begin = told[-1][0] - len(content)  # before it there may be an empty thought
        for position, (a, b) in enumerate(told, start=first):
            at, after = a - begin, max(b, a + 1) - begin
            over = [s for s in spans if s.start < after and at < s.stop]
            rows = {first - 1 if row == NOWHERE else row for s in over for row in s.rows}
            if rows:
                found.append(Pointer(position - 1, tuple(sorted(rows))))
            number = over[0].number if over else None
            if at >= len(content) and spans and spans[-1].number is not None:
                number = spans[-1].number + 1
            if number is not None:
                numbers.append((position - 1, number))
    return found, numbers


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
    if answer.startswith("first "):
        return turns(answer, about)
    stamps = STAMP.findall(answer) or STAMP.findall(question)
    seconds = [60 * int(m) + int(s) for m, s in stamps]
    if not stamps and rows and question.startswith("What happens first"):
        seconds = [min(rows)]
    elif not stamps and rows and question.startswith("What happens last"):
        seconds = [max(rows)]
    if not seconds:
        return []
    return [
        Span(
            *part,
            rows.get(seconds[min(line, len(seconds) - 1)], ()),
            line if question in WHAT else None,
        )
        for line, part in enumerate(_parts(answer, "\n"))
    ]


def turns(answer: str, about: Shown) -> list[Span]:
    """Of an answer that gives the colours of a clip in order: the first pair's rows, then those of
    each change."""
    first, *changes = _parts(answer, ",")
    rows = [rows for _, rows in sorted(about.by_second.items())]
    found = [Span(*first, tuple(about.vision[: about.rows_of_pair]))]
    # A change that another one in its pair hides has no rows.
    told = rows if len(rows) == len(changes) else [()] * len(changes)
    return found + [
        Span(*part, there, number)
        for number, (part, there) in enumerate(zip(changes, told, strict=True))
    ]


def attributes(question: str, answer: str, about: Shown) -> list[Span]:
    """Of an answer about the things of a scene: the rows of the thing that question and answer
    name together, for each thing of a description."""
    if COUNTING.search(question):
        return [Span(0, len(answer) + 1, last_counted(question, about) or (NOWHERE,))]
    parts = _parts(answer, ";")
    return [Span(*part, _named(question, answer[slice(*part)], about)) for part in parts]


def counts(question: str, answer: str, shown: Sequence[Shown]) -> list[Span]:
    """Of an answer that spells a count for each image: the rows of the last that counts there."""
    parts = _parts(answer.partition(":")[0], ",")
    return [
        Span(*part, last_counted(question, about) or (NOWHERE,))
        for about, part in zip(shown, parts, strict=True)
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
        found.append(Span(i, i + 1, tuple(about.vision[row] for row in shows), i))
    return found


def words(answer: str, sound: Sound, positions: list[int]) -> list[Span]:
    """Of a transcript, or of one word that is heard: the rows of sound of each word."""
    said = answer.split(" ")
    times = [(start, stop) for start, stop, _ in sound.words]
    numbered = said == [word for *_, word in sound.words]
    if not numbered:
        times = [(start, stop) for start, stop, word in sound.words if said == [word]][:1]
        said = said[: len(times)]
    found, at = [], 0
    for number, (word, (start, stop)) in enumerate(zip(said, times, strict=True)):
        # A token of a later word begins with the space before it.
        begin, rows = max(at - 1, 0), tuple(heard(positions, start, stop))
        found.append(Span(begin, at + len(word), rows, number if numbered else None))
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


def heard(positions: list[int], start: float, stop: float) -> list[int]:
    """Those rows of a sound that hold its seconds ``start`` to ``stop``."""
    first, last = (int(second * AUDIO_ROWS_PER_SECOND) for second in (start, stop))
    return positions[first : last + 1]


def _parts(answer: str, separator: str) -> list[tuple[int, int]]:
    """(start, stop) of the parts of an answer; each begins with its separator, the last includes
    the answer's end."""
    starts = [0, *(match.start() for match in re.finditer(separator, answer))]
    return list(zip(starts, [*starts[1:], len(answer) + 1], strict=True))


def _named(question: str, told: str, about: Shown) -> tuple[int, ...]:
    """The rows of the one thing, or kind of thing, that both texts name; what is told counts more.
    None where they name several."""
    said, asked = mentioned(told), mentioned(question)
    wanted = {kind: said[kind] or asked[kind] for kind in WORDS}
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
        patches &= getattr(labels, kind)[:, 0] == WORDS[kind].index(wanted[kind]) + 1
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
