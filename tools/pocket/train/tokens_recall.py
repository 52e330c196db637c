"""Recall of bare tokens: the curriculum that builds key-value lookup before any language.

Rows are token ids without meaning: pairs (key, value), then records of two key and two value
tokens, then records with a separator among filler, defined early and asked late. Keys, values and
filler are drawn anew for every row, so only the context can answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tools.pocket.train.example import Example

FORMS = ("pairs", "records", "separated")
PROMOTE = {"pairs": 0.90, "records": 0.85, "separated": 0.93}
FIRST_LENGTH = {"pairs": 64, "records": 96, "separated": 128}
MAX_RECORDS = 40
SMALL_ALPHABET = 64
_MEMORY = 0.97


@dataclass(frozen=True)
class Level:
    """Where the curriculum stands. ``accuracy`` is a moving mean over the level's own batches."""

    form: str = "pairs"
    length: int = 64
    accuracy: float = 0.0
    seen: int = 0

    def after(self, accuracy: float, longest: int) -> Level:
        """The level after a batch with this accuracy: the same, a longer one or the next form."""
        mean = self.accuracy * _MEMORY + accuracy * (1 - _MEMORY) if self.seen else accuracy
        level = replace(self, accuracy=mean, seen=self.seen + 1)
        if level.seen < 20 or mean < PROMOTE[self.form]:
            return level
        if self.form == "separated":
            longer = min(2 * self.length, longest)
            return level if longer == self.length else Level("separated", longer, mean - 0.1, 1)
        following = FORMS[FORMS.index(self.form) + 1]
        return Level(following, FIRST_LENGTH[following])


def tokens_recall(rng: random.Random, level: Level, vocabulary: int) -> Example:
    """One row of ``level.length`` ids below ``vocabulary``. Skill "tokens"."""
    # Half the rows use few tokens, which is easier; the other half make the lookup general.
    alphabet = range(SMALL_ALPHABET) if rng.random() < 0.5 else range(vocabulary)
    if level.form == "pairs":
        return _repeated(rng, level.length, alphabet, 1)
    if level.form == "records":
        return _repeated(rng, level.length, alphabet, 2)
    return _separated(rng, level.length, alphabet, vocabulary)


def _fresh(rng: random.Random, alphabet: range, count: int, size: int) -> list[tuple[int, ...]]:
    """``count`` different keys of ``size`` tokens."""
    if size == 1:
        return [(t,) for t in rng.sample(alphabet, min(count, len(alphabet)))]
    keys: set[tuple[int, ...]] = set()
    while len(keys) < count:
        keys.add(tuple(rng.choices(alphabet, k=size)))
    return sorted(keys, key=lambda _: rng.random())


def _repeated(rng: random.Random, length: int, alphabet: range, size: int) -> Example:
    """Keys with their values in random order; every repeat of a key is asked."""
    keys = _fresh(rng, alphabet, max(2, length // (2 * size) // 3), size)
    values = {key: tuple(rng.choices(alphabet, k=size)) for key in keys}
    example, seen = Example("tokens", [], []), set()
    while len(example.ids) + 2 * size <= length:
        key = rng.choice(keys)
        _append(example, key, values[key], asked=key in seen)
        seen.add(key)
    return example


def _separated(rng: random.Random, length: int, alphabet: range, vocabulary: int) -> Example:
    """Records ``k k S v v`` among filler, then queries of the same form in the last part."""
    separator = vocabulary - 1
    room = length // 5
    count = rng.randint(2, max(2, min(MAX_RECORDS, room // 2)))
    keys = _fresh(rng, alphabet, count, 2)
    values = {key: tuple(rng.choices(alphabet, k=2)) for key in keys}
    queries = min(max(count, room // 4), room - count, 64)
    filler = length - 5 * (count + queries)
    gaps = sorted(rng.randint(0, filler) for _ in range(count))
    example, used = Example("tokens", [], []), 0
    for key, gap in zip(keys, gaps, strict=True):
        _filler(rng, example, gap - used, alphabet)
        used = gap
        _append(example, (*key, separator), values[key], asked=False)
    _filler(rng, example, filler - used, alphabet)
    for _ in range(queries):
        key = rng.choice(keys)
        _append(example, (*key, separator), values[key], asked=True)
    return example


def _filler(rng: random.Random, example: Example, count: int, alphabet: range) -> None:
    example.ids += rng.choices(alphabet, k=count)
    example.supervised += [False] * count


def _append(example: Example, key: tuple[int, ...], value: tuple[int, ...], asked: bool) -> None:
    example.ids += [*key, *value]
    example.supervised += [False] * len(key) + [asked] * len(value)
    if asked:
        example.turns.append((len(example.ids) - len(value), len(example.ids)))
