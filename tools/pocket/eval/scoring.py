"""Comparing an answer with the expected one: how much is right, out of how much."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.pocket.data.sample import Message, Score

# Right and total, in the unit of the score (attributes, characters, words, events, answers).
Marks = tuple[float, int]


def edits(found: Sequence[str], wanted: Sequence[str]) -> int:
    """Edit distance of two sequences."""
    row = list(range(len(wanted) + 1))
    for i, a in enumerate(found, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(wanted, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


def _share(found: Sequence[str], wanted: Sequence[str]) -> Marks:
    return max(0, len(wanted) - edits(found, wanted)), len(wanted)


def words(found: str, wanted: str) -> Marks:
    """Words less word edits; punctuation does not count."""
    return _share(*(re.findall(r"\w+", text.lower()) for text in (found, wanted)))


def characters(found: str, wanted: str) -> Marks:
    """Characters less character edits, whatever the case."""
    return _share(found.strip().upper(), wanted.strip().upper())


def events(found: str, wanted: str) -> Marks:
    """Lines of the answer that are right and in order; a line too many costs one."""
    got, expected = ([line.strip() for line in text.splitlines()] for text in (found, wanted))
    return _share(got, expected)


def exact(found: str, wanted: str) -> Marks:
    """1 for the same text, or the same JSON document."""
    if found.strip() == wanted.strip():
        return 1, 1
    try:
        return int(json.loads(found) == json.loads(wanted)), 1
    except json.JSONDecodeError:
        return 0, 1


TEXT_SCORES: Mapping[Score, Callable[[str, str], Marks]] = {
    "attributes": words,
    "characters": characters,
    "words": words,
    "events": events,
    "exact": exact,
    "free": exact,
}


def calls(message: Message) -> list[tuple[str, Any]]:
    """Names and arguments of a message's tool calls, arguments parsed where they are text."""
    found = []
    for call in message.get("tool_calls") or []:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except json.JSONDecodeError:
                arguments = None
        found.append((call["function"]["name"], arguments))
    return found


def marks(found: Message, wanted: Message, score: Score) -> Marks:
    """Marks of an assistant message against the expected one."""
    if wanted.get("tool_calls") or found.get("tool_calls"):
        return int(calls(found) == calls(wanted)), 1
    return TEXT_SCORES[score](found.get("content") or "", wanted.get("content") or "")
