"""The rows of the table: which samples, how scored, which bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from tools.pocket.data.clip_questions import watch
from tools.pocket.data.mixture import recall_sample, sample
from tools.pocket.data.sample import Sample, assistant, stream, user
from tools.pocket.data.text_images import read
from tools.pocket.eval.talk import PROMPTS

SEED = 1000
CONTINUE = ("copy", "count", "json", "tool")


@dataclass(frozen=True)
class Row:
    """A line of the table. ``make(i)`` is its sample i; ``bar`` None: reported only.

    ``full`` and ``quick`` are numbers of samples; a sample asks one to eight questions.
    """

    name: str
    what: str
    bar: float | None
    make: Callable[[int], Sample]
    full: int
    quick: int


def _skill(name: str) -> Callable[[int], Sample]:
    return lambda i: sample(name, "heldout", SEED, i)


def _read(low: float, high: float) -> Callable[[int], Sample]:
    return lambda i: read(stream("heldout", f"read{low:g}", SEED, i), low, high)


def _watch(seconds: int) -> Callable[[int], Sample]:
    return lambda i: watch(stream("heldout", f"watch{seconds}", SEED, i), seconds=seconds)


def _talk(i: int) -> Sample:
    prompt, pattern = PROMPTS[i]
    return Sample("talk", [user(prompt)], assistant(""), detail={"pattern": pattern})


def table(checkpoint: Path) -> list[Row]:
    """The rows of issue 3; ``checkpoint`` gives the tokenizer that lengths are counted in."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    def recall(*lengths: int) -> Callable[[int], Sample]:
        return lambda i: recall_sample("heldout", SEED, i, tokens, lengths[i % len(lengths)])

    return [
        Row("look", "attributes", 0.95, _skill("look"), 60, 6),
        Row("read, 20 pixels and more", "characters", 0.95, _read(20, 32), 100, 8),
        Row("read, smaller print", "characters", None, _read(13, 19.9), 60, 4),
        Row("compare 2-3 images", "attributes", 0.95, _skill("compare"), 50, 5),
        Row("hear words", "words", 0.90, _skill("hear_words"), 80, 8),
        Row("hear tones and beeps", "words", 0.95, _skill("hear_tones"), 60, 6),
        Row("watch, 8 frames", "events", 0.90, _watch(8), 50, 4),
        Row("watch, 16 frames", "events", 0.80, _watch(16), 40, 3),
        Row("recall, 1K to 4K tokens", "answers", 0.95, recall(1024, 2048, 4096), 18, 2),
        Row("recall, 8K tokens", "answers", 0.85, recall(8192), 5, 1),
        Row(
            "copy, count, JSON, tools",
            "answers",
            0.95,
            lambda i: _skill(CONTINUE[i % len(CONTINUE)])(i),
            120,
            12,
        ),
        Row("reverse and sort", "answers", None, _skill("rearrange"), 30, 2),
        Row("think", "answers", None, _skill("think"), 30, 2),
        Row("talk", "prompts", 0.95, _talk, len(PROMPTS), 8),
    ]
