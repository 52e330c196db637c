"""Text skills by name: copy, count, sort, long answers, JSON by schema."""

from __future__ import annotations

import json
import random
import re
import string
from typing import Any

from tools.pocket.corpus import WORDS
from tools.pocket.data.sample import Sample, Stream, assistant, user
from tools.pocket.data.words import CITIES, COLOURS, NAMES, NUMBERS, SHAPES

_MORE = (
    "sun",
    "moon",
    "tree",
    "bird",
    "fish",
    "book",
    "lamp",
    "ship",
    "road",
    "door",
    "hill",
    "rain",
)
VOCABULARY = (*WORDS, *_MORE, *COLOURS, *NUMBERS)
REPEAT: tuple[str, ...] = ("Repeat this: {}", "Copy this: {}", "Say this again: {}")
REVERSE = ("Reverse this: {}", "Write this backwards: {}")
SORT = ("Sort this: {}", "Put this in order: {}")
OCCUR = re.compile(r"How many times does (?P<word>\w+) occur\? (?P<items>[\w ]+)")


def copy(stream: Stream) -> Sample:
    """Repeat a passage of words, digits or capitals. Skill "copy"; ``detail["order"]`` are the
    numbers of the passage's items as the answer gives them."""
    items, joint = _passage(stream.rng, 16, 12)
    return _copied(stream, "copy", REPEAT, items, joint, list(range(len(items))))


def rearrange(stream: Stream) -> Sample:
    """Reverse or sort a short passage. Skill "rearrange"; ``detail`` is as in ``copy``."""
    items, joint = _passage(stream.rng, 7, 7)
    order = list(range(len(items)))
    if stream.rng.random() < 0.5:
        return _copied(stream, "rearrange", REVERSE, items, joint, order[::-1])
    order.sort(key=items.__getitem__)
    return _copied(stream, "rearrange", SORT, items, joint, order)


def _passage(rng: random.Random, words: int, characters: int) -> tuple[list[str], str]:
    """At most so many words, or digits or capitals, and what separates them."""
    kind = rng.random()
    if kind < 0.6:
        return [rng.choice(VOCABULARY) for _ in range(rng.randint(2, words))], " "
    alphabet = string.digits if kind < 0.8 else string.ascii_uppercase
    items = [rng.choice(alphabet) for _ in range(rng.randint(3, characters))]
    return items, rng.choice(("", " "))


def _copied(
    stream: Stream,
    skill: str,
    asks: tuple[str, ...],
    items: list[str],
    joint: str,
    order: list[int],
) -> Sample:
    question = stream.rng.choice(asks).format(joint.join(items))
    answer = joint.join(items[i] for i in order)
    return Sample(skill, [user(question)], assistant(answer), detail={"order": order})


def long(stream: Stream) -> Sample:
    """Repeat a long passage of words, or count far. Answers of 100 to 350 tokens. Skill "long";
    a passage's ``detail["order"]`` is as in ``copy``."""
    rng = stream.rng
    if rng.random() < 0.5:
        start, length = rng.randint(0, 99), rng.randint(40, 130)
        numbers = " ".join(str(n) for n in range(start, start + length + 1))
        asked = user(f"Count from {start} to {start + length}.")
        return Sample("long", [asked], assistant(numbers))
    words = [rng.choice(VOCABULARY) for _ in range(rng.randint(40, 160))]
    passage, detail = " ".join(words), {"order": list(range(len(words)))}
    asked = user(rng.choice(REPEAT).format(passage))
    return Sample("long", [asked], assistant(passage), detail=detail)


def count(stream: Stream) -> Sample:
    """Count up or down, or count words in a list. Skill "count"."""
    rng = stream.rng
    if rng.random() < 0.6:
        start, length = rng.randint(0, 60), rng.randint(3, 12)
        down = rng.random() < 0.35 and start >= length
        stop = start - length if down else start + length
        numbers = range(start, stop + (-1 if down else 1), -1 if down else 1)
        step = "down from" if down else "from"
        return Sample(
            "count",
            [user(f"Count {step} {start} to {stop}.")],
            assistant(" ".join(str(n) for n in numbers)),
        )
    return occur(stream, "count")


def occur(stream: Stream, skill: str = "occur") -> Sample:
    """How often a word occurs in a list. A part of "count", and in training a skill of its
    own."""
    rng = stream.rng
    pool = rng.sample(VOCABULARY, 3)
    items = [rng.choice(pool) for _ in range(rng.randint(2, 9))]
    wanted = rng.choice(pool)
    question = f"How many times does {wanted} occur? {' '.join(items)}"
    return Sample(skill, [user(question)], assistant(NUMBERS[items.count(wanted)]))


def _value(rng: random.Random, kind: str) -> Any:
    if kind == "integer":
        return rng.randint(0, 99)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return [rng.choice(SHAPES) for _ in range(rng.randint(1, 3))]
    return None


_STRINGS = {"name": NAMES, "city": CITIES, "colour": COLOURS, "word": WORDS}
_OTHERS = {"count": "integer", "age": "integer", "found": "boolean", "shapes": "array"}


def schema_of(record: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema that a record of strings, integers, booleans and string lists satisfies."""
    properties: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, list):
            properties[key] = {"type": "array", "items": {"type": "string"}}
        else:
            named = {bool: "boolean", int: "integer", str: "string"}
            properties[key] = {"type": named[type(value)]}
    return {"type": "object", "properties": properties, "required": list(record)}


def _phrase(key: str, value: Any) -> str:
    if isinstance(value, list):
        return f"the {key} are {' and '.join(value)}"
    if isinstance(value, bool):
        return f"it was {'' if value else 'not '}{key}"
    return f"the {key} is {value}"


def json_record(stream: Stream) -> Sample:
    """Facts in a sentence, to be written as a JSON object by keys or by schema. Skill "json"."""
    rng = stream.rng
    keys = rng.sample([*_STRINGS, *_OTHERS], rng.randint(1, 4))
    record = {
        key: rng.choice(_STRINGS[key]) if key in _STRINGS else _value(rng, _OTHERS[key])
        for key in keys
    }
    told = list(record)
    rng.shuffle(told)
    facts = "; ".join(_phrase(key, record[key]) for key in told)
    detail: dict[str, Any] = {}
    if rng.random() < 0.5:
        ask = f"Answer as a JSON object with the keys {', '.join(record)}."
    else:
        schema = schema_of(record)
        ask = f"Answer as a JSON object by this schema: {json.dumps(schema)}"
        detail["schema"] = schema
    question = f"{facts[0].upper()}{facts[1:]}. {ask}"
    return Sample("json", [user(question)], assistant(json.dumps(record)), detail=detail)
