"""Answers with and without reasoning: the same question, the counting written out first."""

from __future__ import annotations

from dataclasses import replace

from tools.pocket.data.sample import Sample, Stream, assistant, user
from tools.pocket.data.text_tasks import VOCABULARY
from tools.pocket.data.words import NUMBERS


def think(stream: Stream) -> Sample:
    """Count a word in a list, reasoning step by step. Skill "think"; ``thinking`` is on."""
    rng = stream.rng
    pool = rng.sample(VOCABULARY, 3)
    items = [rng.choice(pool) for _ in range(rng.randint(2, 8))]
    wanted, seen, steps = rng.choice(pool), 0, []
    for item in items:
        seen += item == wanted
        steps.append(f"{item} {seen}")
    answer = assistant(NUMBERS[seen])
    answer["reasoning_content"] = "; ".join(steps)
    question = f"How many times does {wanted} occur? {' '.join(items)}"
    return Sample("think", [user(question)], answer, thinking=True)


def thoughtful(sample: Sample, reasoning: str) -> Sample:
    """``sample`` with thinking on and this reasoning before its answer."""
    return replace(sample, thinking=True, answer={**sample.answer, "reasoning_content": reasoning})
