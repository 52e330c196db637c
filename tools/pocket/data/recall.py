"""Recall of records far outside the window, at a chosen length in tokens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Literal

from tools.pocket.corpus import WORDS
from tools.pocket.data.sample import Message, Sample, Stream, assistant, user
from tools.pocket.data.words import CITIES, NAMES, THINGS

Form = Literal["pairs", "records", "sentences"]
KEYS = tuple(t for t in THINGS if t not in ("colour", "shape"))
MAX_RECORDS = 40
Tokens = Callable[[str], int]


def _filler(rng: random.Random) -> str:
    """A sentence that holds no record."""
    who, city = rng.choice(NAMES).capitalize(), rng.choice(CITIES).capitalize()
    a, b = rng.choice(WORDS), rng.choice(WORDS)
    return rng.choice(
        (
            f"{who} went from {city} to the {a} and then walked home.",
            f"There was no {a} in the {b}, but nobody saw it.",
            f"When it rains, the {a} by the {b} looks different.",
            f"{who} said that this would be the last {a} of the year.",
            f"The {a} and the {b} were made in {city}.",
            f"In {city} they still talk about the {a}.",
        )
    )


def record(key: tuple[str, str], value: int, form: Form) -> str:
    """A record as text: "code anna 57", "code anna: 57;" or a sentence."""
    thing, name = key
    if form == "pairs":
        return f"{thing} {name} {value}"
    if form == "records":
        return f"{thing} {name}: {value};"
    return f"The {thing} of {name} is {value}."


def recall(
    stream: Stream,
    tokens: Tokens,
    length: int = 1024,
    queries: int = 8,
    form: Form = "sentences",
    records: int | None = None,
) -> Sample:
    """Records first (among filler), filler up to ``length`` tokens, then ``queries`` questions.

    ``tokens(text)`` counts the tokens of a text. The records stand in the first half of the text,
    in random order, with fresh values for every sample; the questions are turns of one
    conversation. The default number of records grows with ``length``, up to 40. Skill "recall".
    """
    rng = stream.rng
    room = length - 60 - 24 * queries
    if room < 32:
        raise ValueError(f"{length} tokens are too few for {queries} questions")
    most = min(MAX_RECORDS, max(2, room // 50), len(KEYS) * len(NAMES))
    total = records or rng.randint(max(1, most // 3), most)
    keys = rng.sample(list(itertools.product(KEYS, NAMES)), total)
    values = {key: rng.randint(10, 99) for key in keys}
    told = [record(key, values[key], form) for key in keys]
    lines, used = list(told), sum(tokens(f" {line}") for line in told)
    early: list[str] = []
    late: list[str] = []
    while True:
        line = _filler(rng)
        used += tokens(f" {line}")
        if used > room:
            break
        # Half of the filler stands among the records, half after them.
        (early if len(early) < len(late) else late).append(line)
    for line in early:
        lines.insert(rng.randint(0, len(lines)), line)
    passage = " ".join(lines + late)
    asked = (
        [rng.choice(keys) for _ in range(queries)] if total < queries else rng.sample(keys, queries)
    )
    messages: list[Message] = []
    for i, (thing, name) in enumerate(asked):
        question = f"What is the {thing} of {name}?"
        messages.append(user(f"{passage}\n{question}" if i == 0 else question))
        messages.append(assistant(str(values[thing, name])))
    detail = {"tokens": length, "records": total}
    return Sample("recall", messages[:-1], messages[-1], detail=detail)
