"""Skills by name: the one table that training and evaluation draw from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tools.pocket.data.chat import chat
from tools.pocket.data.clip_questions import watch
from tools.pocket.data.compare import compare
from tools.pocket.data.recall import Tokens, recall
from tools.pocket.data.sample import Sample, Split, Stream, stream
from tools.pocket.data.scene_questions import look
from tools.pocket.data.sounds import hear_tones, hear_words
from tools.pocket.data.text_images import read
from tools.pocket.data.text_tasks import copy, count, json_record, long, occur, rearrange
from tools.pocket.data.thinking import think
from tools.pocket.data.tool_tasks import tool_call

SKILLS: dict[str, Callable[[Stream], Sample]] = {
    "look": look,
    "read": read,
    "compare": compare,
    "hear_words": hear_words,
    "hear_tones": hear_tones,
    "watch": watch,
    "copy": copy,
    "rearrange": rearrange,
    "count": count,
    "occur": occur,
    "long": long,
    "json": json_record,
    "tool": tool_call,
    "chat": chat,
    "think": think,
}

LONG: dict[str, Callable[[Stream, int], Sample]] = {
    "look": look,
    "compare": partial(compare, more=0.4),
    "watch": partial(watch, colours=0.35, sound=0.4, busy=2),
}


def sample(skill: str, split: Split, seed: int, index: int) -> Sample:
    """Item ``index`` of a skill. "recall" needs a tokenizer: see ``recall_sample``."""
    return SKILLS[skill](stream(split, skill, seed, index))


def long_sample(skill: str, seed: int, index: int, turns: int) -> Sample:
    """Item ``index`` of a skill for training, with up to ``turns`` questions about the same media:
    a picture costs as much as a hundred words, so it is asked more than evaluation does."""
    return LONG[skill](stream("train", skill, seed, index), turns)


def recall_sample(
    split: Split,
    seed: int,
    index: int,
    tokens: Tokens,
    length: int,
    queries: int = 8,
    records: int | None = None,
) -> Sample:
    """Item ``index`` of "recall" in ``length`` tokens, asked in sentences."""
    source = stream(split, f"recall{length}", seed, index)
    return recall(source, tokens, length, queries, records=records)
