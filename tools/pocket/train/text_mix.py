"""The text skills as training examples, with shares that follow the weakest one."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tools.pocket.data.mixture import recall_sample, sample
from tools.pocket.data.sample import Sample, Split
from tools.pocket.train.example import ChatEncoder, Example
from tools.pocket.train.tokens_recall import Level, tokens_recall

SHARES = {
    "copy": 6.0,
    "rearrange": 1.0,
    "count": 5.0,
    "occur": 5.0,
    "long": 3.0,
    "json": 4.0,
    "tool": 3.0,
    "chat": 2.0,
    "think": 0.7,
}
TEXT_SKILLS = tuple(SHARES)
RECALL_SHARE = 8.0
FIRST_REACH, RECALL_QUERIES = 256, 8
MANY_QUERIES = 24  # in every second text: a long one costs as much whatever is asked of it


@dataclass(frozen=True)
class Reach:
    """Up to which length recall in sentences is trained; doubles when it is mastered."""

    length: int = FIRST_REACH
    accuracy: float = 0.0
    seen: int = 0

    def after(self, accuracy: float, longest: int) -> Reach:
        mean = self.accuracy * 0.97 + accuracy * 0.03 if self.seen else accuracy
        if self.seen < 30 or mean < 0.93 or self.length >= longest:
            return replace(self, accuracy=mean, seen=self.seen + 1)
        return Reach(min(2 * self.length, longest), mean - 0.08, 1)


def varied(made: Sample, index: int) -> Sample:
    """Every sixteenth sample with thinking on: the model then opens and closes its thoughts
    itself, without reasoning where the skill has none."""
    return replace(made, thinking=True) if index % 16 == 5 else made


def recall_queries(length: int, most: int = RECALL_QUERIES) -> int:
    return max(1, min(most, (length - 100) // 40))


@dataclass
class TextMix:
    """Makes text examples and decides how many of each skill the next pool gets.

    ``level`` and ``reach`` are the two recall curricula, ``accuracy`` the moving share of right
    turns and ``lengths`` the moving number of tokens of an example, by skill.
    """

    encoder: ChatEncoder
    seed: int
    vocabulary: int
    longest_tokens: int = 2048
    longest_recall: int = 4096
    level: Level = field(default_factory=Level)
    reach: Reach = field(default_factory=Reach)
    accuracy: dict[str, float] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)

    def make(self, skill: str, index: int, split: Split = "train") -> Example:
        if skill == "tokens":
            return tokens_recall(random.Random(f"{self.seed}/{index}"), self.level, self.vocabulary)
        if skill == "recall":
            rng = random.Random(f"{self.seed}/{index}")
            length = self.reach.length
            if rng.random() < 0.4:
                length = int(FIRST_REACH * (length / FIRST_REACH) ** rng.random())
            return self.recall(index, length, split, many=rng.random() < 0.5)
        return self.encoder.example(varied(sample(skill, split, self.seed, index), index))

    def recall(self, index: int, length: int, split: Split, many: bool = False) -> Example:
        """A text with a few questions, or with one about each of ``many`` records."""
        queries = recall_queries(length, MANY_QUERIES if many else RECALL_QUERIES)
        stream, records = (split, self.seed, index), queries if many else None
        made = recall_sample(*stream, self.encoder.count, length, queries, records)
        return self.encoder.example(made)

    @property
    def learning_lookup(self) -> bool:
        """Whether bare-token lookup has not yet reached records in a text."""
        return self.level.form != "separated"

    def shares(self) -> dict[str, float]:
        """Share of the tokens by skill (not normalised)."""
        shares = {skill: SHARES[skill] * self._need(skill) for skill in TEXT_SKILLS}
        done = self.level.length >= self.longest_tokens and self.level.accuracy > 0.95
        shares["tokens"] = 12.0 if self.learning_lookup else 1.0 if done else 5.0
        shares["recall"] = 0.5 if self.learning_lookup else RECALL_SHARE * self._need("recall")
        return shares

    def _need(self, skill: str) -> float:
        missing = 1.0 - self.accuracy.get(skill, 0.0)
        return min(1.0, max(0.2, missing / 0.1))

    def weights(self) -> dict[str, float]:
        """Items by skill, so that the shares hold in tokens."""
        return {s: share / self.lengths.get(s, 100.0) for s, share in self.shares().items()}

    def learn(self, right: dict[str, float], examples: list[Example]) -> None:
        """Take note of a trained batch: accuracy of turns by skill, and its examples."""
        for example in examples:
            old = self.lengths.get(example.skill, float(len(example)))
            self.lengths[example.skill] = old + 0.02 * (len(example) - old)
        for skill, value in right.items():
            old = self.accuracy.get(skill, 0.0)
            self.accuracy[skill] = old + 0.03 * (value - old)
        if "tokens" in right:
            self.level = self.level.after(right["tokens"], self.longest_tokens)
        if "recall" in right:
            self.reach = self.reach.after(right["recall"], self.longest_recall)

    def state(self) -> dict[str, Any]:
        return {
            "level": asdict(self.level),
            "reach": asdict(self.reach),
            "accuracy": dict(self.accuracy),
            "lengths": dict(self.lengths),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.level, self.reach = Level(**state["level"]), Reach(**state["reach"])
        self.accuracy, self.lengths = dict(state["accuracy"]), dict(state["lengths"])
