"""What a generator yields: messages, media and the expected answer."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from PIL import Image

from tools.pocket.data.labels import Happening

Split = Literal["train", "heldout"]
Message = dict[str, Any]
Score = Literal["exact", "attributes", "characters", "words", "events", "free"]
T = TypeVar("T")


@dataclass(frozen=True)
class Stream:
    """The random source of one item. The same four values give the same item on any machine."""

    split: Split
    name: str
    seed: int
    index: int

    @cached_property
    def _digest(self) -> bytes:
        text = f"{self.split}/{self.name}/{self.seed}/{self.index}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    @cached_property
    def rng(self) -> random.Random:
        return random.Random(int.from_bytes(self._digest, "little"))

    @cached_property
    def noise(self) -> np.random.Generator:
        """For arrays of noise; drawn from apart from ``rng``, so adding noise moves nothing."""
        return np.random.Generator(np.random.PCG64(int.from_bytes(self._digest, "big")))

    def fork(self, name: str) -> Stream:
        """A stream of its own for a part of the item."""
        return Stream(self.split, f"{self.name}/{self.index}/{name}", self.seed, 0)

    def pick(self, train: Sequence[T], heldout: Sequence[T]) -> T:
        return self.rng.choice(train if self.split == "train" else heldout)


@dataclass(frozen=True)
class Picture:
    """A still picture, ``pixels`` uint8 [H, W, 3], and what its parts show (for labels)."""

    pixels: np.ndarray
    facts: Any = None

    def encoded(self, form: Literal["PNG", "JPEG"] = "PNG", quality: int = 90) -> bytes:
        buffer = io.BytesIO()
        options = {"quality": quality} if form == "JPEG" else {"compress_level": 1}
        Image.fromarray(self.pixels).save(buffer, form, **options)
        return buffer.getvalue()


@dataclass(frozen=True)
class Sound:
    """``samples`` float32 [n], mono, in -1..1. ``words`` are (start second, end second, word)."""

    samples: np.ndarray
    rate: int
    words: tuple[tuple[float, float, str], ...] = ()


@dataclass(frozen=True)
class Clip:
    """A clip as its drawing function, so that training draws only the frames that are sampled.

    ``draw(t)`` gives the frame uint8 [H, W, 3] shown at second ``t``; ``count`` frames at ``fps``.
    ``facts(t)`` says what the frame shows, as a picture's ``facts`` does, and ``happenings`` what
    changes.
    """

    draw: Callable[[float], np.ndarray]
    facts: Callable[[float], Any]
    fps: int
    count: int
    sound: Sound | None = None
    happenings: tuple[Happening, ...] = ()

    @property
    def duration(self) -> float:
        return self.count / self.fps

    def times(self, options: Any = None) -> np.ndarray:
        """Seconds float64 [T] of the frames that the server samples (T even).

        ``options`` is a ``video.sampling.SamplingOptions``; the default is the server's.
        """
        from video.sampling import SamplingOptions, choose

        return choose(self.count, self.fps, options or SamplingOptions()) / self.fps

    def frames(self, times: Sequence[float] | np.ndarray) -> np.ndarray:
        """uint8 [T, H, W, 3] at these seconds."""
        return np.stack([self.draw(float(t)) for t in times])


Media = Picture | Sound | Clip


@dataclass(frozen=True)
class Sample:
    """A conversation and the answer that is expected at its end.

    ``messages`` are OpenAI chat messages without the answer. A media content part is
    ``{"type": "media", "index": k}`` and stands for ``media[k]``. Earlier assistant turns are
    true answers too, so training may supervise all of them. ``answer`` is the final assistant
    message: ``content``, with ``tool_calls`` (arguments as a dict) or ``reasoning_content`` where
    the task has them. ``score`` says how to compare an answer with it, ``detail`` what the sample
    is about (print height, length in tokens, ...), for tables.
    """

    skill: str
    messages: list[Message]
    answer: Message
    media: tuple[Media, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool = False
    score: Score = "exact"
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def conversation(self) -> list[Message]:
        return [*self.messages, self.answer]


def stream(split: Split, name: str, seed: int, index: int) -> Stream:
    return Stream(split, name, seed, index)


def user(*parts: str | int) -> Message:
    """A user message; an ``int`` is the index of a medium, a string is text."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "media", "index": part}
        for part in parts
    ]
    only = content[0] if len(content) == 1 else None
    return {"role": "user", "content": only["text"] if only and "text" in only else content}


def text_of(message: Message) -> str:
    """The text of a message, without its media. Raises ValueError unless it is one part."""
    content: str | list[Message] = message["content"]
    if isinstance(content, str):
        return content
    (text,) = (str(part["text"]) for part in content if part["type"] == "text")
    return text


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def ask_all(
    parts: Sequence[int], pairs: Sequence[tuple[str, str]], text_first: bool = False
) -> tuple[list[Message], Message]:
    """A conversation of (question, answer) pairs; the media ``parts`` come with the first question,
    before its text or, with ``text_first``, after it."""
    messages: list[Message] = []
    for i, (question, answer) in enumerate(pairs):
        first: list[str | int] = [question, *parts] if text_first else [*parts, question]
        messages.append(user(*first) if i == 0 else user(question))
        messages.append(assistant(answer))
    return messages[:-1], messages[-1]
