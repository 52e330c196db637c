"""Deterministic example text of the pocket model's skills, for training its tokenizer.

The text has the vocabulary and the shapes of the real tasks (what things look like, reading,
counting, times, JSON, chat, tool calls, copying, recall), not their difficulty.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator

COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "black", "white")
SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond")
SIZES = ("small", "large")
PLACES = (
    *("top left", "top", "top right", "left", "centre", "right"),
    *("bottom left", "bottom", "bottom right"),
)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NAMES = ("anna", "ben", "carla", "david", "emma", "felix", "greta", "hugo", "iris", "jonas")
THINGS = ("code", "key", "number", "colour", "shape", "box", "door", "word", "city", "animal")
WORDS = (
    *("apple", "river", "stone", "paper", "garden", "window", "music", "winter", "table"),
    *("light", "house", "bread", "water", "train", "cloud", "horse", "chair", "school"),
)
CITIES = ("berlin", "paris", "oslo", "rome", "tokyo", "lima", "cairo", "delhi")
EVENTS = ("appears", "disappears", "moves left", "moves right", "moves up", "moves down")


def _object(rng: random.Random) -> str:
    return f"{rng.choice(SIZES)} {rng.choice(COLOURS)} {rng.choice(SHAPES)}"


def _capitals(rng: random.Random, low: int, high: int) -> str:
    alphabet = string.ascii_uppercase if rng.random() < 0.5 else string.digits
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(low, high)))


def _look(rng: random.Random) -> str:
    parts = [f"{rng.choice(PLACES)}: {_object(rng)}" for _ in range(rng.randint(1, 4))]
    question = rng.choice(
        (
            "Describe the image.",
            "What is in the image?",
            f"What colour is the {rng.choice(SHAPES)}?",
            f"What shape is at the {rng.choice(PLACES)}?",
            "Is the circle left of the square?",
        )
    )
    verdict = rng.choice(("yes", "no", rng.choice(COLOURS), rng.choice(SHAPES)))
    # Bare answers come right after a tag, so those words need entries without a space.
    bare = f"{rng.choice(COLOURS)}\n{rng.choice(SHAPES)}\n{rng.choice(PLACES)}\n{verdict}"
    return f"{question}\n{'; '.join(parts)}.\n{bare}\nThe answer is {verdict}."


def _read(rng: random.Random) -> str:
    question = rng.choice(("Read the text.", "What does the sign say?", "What is written here?"))
    return f"{question}\n{_capitals(rng, 1, 8)}\nThe text says {_capitals(rng, 3, 6)}."


def _count(rng: random.Random) -> str:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    shape = rng.choice(SHAPES)
    things = f"{rng.choice(COLOURS)} {shape}{'es' if shape.endswith('s') else 's'}"
    verdict = "the first" if a > b else "the second" if b > a else "both the same"
    return (
        f"How many {things} are there? Count them.\n{NUMBERS[a]} ({a})\n{NUMBERS[b]}\n"
        f"Which image has more {things}?\nThe first has {a}, the second has {b}: {verdict}."
    )


def _watch(rng: random.Random) -> str:
    lines = [
        f"{rng.randint(0, 5):02d}:{rng.randint(0, 59):02d} a {_object(rng)} {rng.choice(EVENTS)}"
        for _ in range(rng.randint(1, 4))
    ]
    ask = rng.choice(("What happens in the video?", "When does the square appear?"))
    return f"{ask}\n" + "\n".join(lines) + f"\nfirst {rng.choice(COLOURS)}, then black"


def _hear(rng: random.Random) -> str:
    words = " ".join(rng.choice(NUMBERS + COLOURS) for _ in range(rng.randint(1, 6)))
    tones = " ".join(rng.choice(("low", "middle", "high")) for _ in range(rng.randint(1, 5)))
    question = rng.choice(
        ("Write down what you hear.", "What is said in the audio?", "Which tones do you hear?")
    )
    return f"{question}\n{words}\ntones: {tones}\nThe speaker says {words}."


def _json(rng: random.Random) -> str:
    record = {
        "name": rng.choice(NAMES),
        "city": rng.choice(CITIES),
        "count": rng.randint(0, 99),
        "colour": rng.choice(COLOURS),
        "shapes": [rng.choice(SHAPES) for _ in range(rng.randint(0, 3))],
        "found": rng.random() < 0.5,
        "text": _capitals(rng, 2, 5),
        "note": rng.choice((None, rng.choice(WORDS))),
    }
    keys = rng.sample(sorted(record), rng.randint(2, 6))
    small = {key: record[key] for key in keys}
    indent = 2 if rng.random() < 0.3 else None
    return "Answer as a JSON object.\n" + json.dumps(small, indent=indent)


def _chat(rng: random.Random) -> str:
    name = rng.choice(NAMES)
    return rng.choice(
        (
            "You are a helpful assistant.",
            f"Hello, my name is {name}.\nHello {name}! How can I help you?",
            "Thank you very much!\nYou are welcome.",
            f"What is my name?\nYour name is {name}.",
            "Who are you?\nI am a small model that can see, hear and read.",
            f"Let me think. The {rng.choice(THINGS)} is not in the image, so I do not know.",
            f"What is the weather in {rng.choice(CITIES)} today? It is {rng.randint(-9, 35)}°C.",
            "Please answer in one word.\nOkay.",
            "Can you explain what this means, and why it happens? I'm not sure; it's new to me.",
        )
    )


def _tool(rng: random.Random) -> str:
    name, key, value = rng.choice(
        (
            ("get_weather", "city", rng.choice(CITIES)),
            ("get_time", "city", rng.choice(CITIES)),
            ("search", "query", f"{rng.choice(COLOURS)} {rng.choice(WORDS)}"),
            ("add", "numbers", f"[{rng.randint(0, 99)}, {rng.randint(0, 99)}]"),
        )
    )
    declared = {
        "type": "object",
        "properties": {key: {"type": "string", "description": f"The {key}"}},
        "required": [key],
    }
    return (
        f"<function>\n<name>{name}</name>\n<description>Use this function to {name}</description>\n"
        f"<parameters>{json.dumps(declared)}</parameters>\n</function>\n"
        f"<function={name}>\n<parameter={key}>{value}</parameter>\n</function>\n"
        f'{{"result": "{rng.choice(WORDS)}", "temperature": {rng.randint(0, 30)}}}'
    )


def _copy(rng: random.Random) -> str:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 8)))
    ask = rng.choice(("Repeat", "Copy", "Sort", "Reverse"))
    return f"{ask} this: {words}\n{words}\n{_capitals(rng, 2, 6)}"


def _recall(rng: random.Random) -> str:
    lines = [
        f"the {rng.choice(THINGS)} of {rng.choice(NAMES)} is {rng.randint(10, 99)}."
        for _ in range(rng.randint(2, 6))
    ]
    ask = f"What is the {rng.choice(THINGS)} of {rng.choice(NAMES)}?"
    return " ".join(lines) + f"\n{ask}\n{rng.randint(10, 99)}"


def _prose(rng: random.Random) -> str:
    who, city = rng.choice(NAMES).capitalize(), rng.choice(CITIES).capitalize()
    return rng.choice(
        (
            f"{who} went from {city} to the {rng.choice(WORDS)} and then walked home with them.",
            f"There was a {rng.choice(WORDS)} in the {rng.choice(WORDS)}, but nobody saw it.",
            f"When it rains, the {rng.choice(WORDS)} by the {rng.choice(WORDS)} looks different.",
            f"{who} said that this would be the last {rng.choice(WORDS)} of the year.",
            f"All of these were made by {who}; some are still being used in {city}.",
        )
    )


SKILLS: tuple[Callable[[random.Random], str], ...] = (
    _look,
    _read,
    _count,
    _watch,
    _hear,
    _json,
    _chat,
    _tool,
    _copy,
    _recall,
    _prose,
)


def documents(count: int, seed: int = 0) -> Iterator[str]:
    """Yield ``count`` documents, going round the skills; the same arguments give the same text."""
    rng = random.Random(seed)
    for i in range(count):
        yield SKILLS[i % len(SKILLS)](rng)
