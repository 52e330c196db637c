"""Training rows: token ids with what is supervised and where media rows stand.

A sample's conversation goes through the serving path's own code (chat template, ``llm.prompt``),
so the model is trained on exactly the ids it will be asked with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from encoders.embedding import Embedding, Segment, layout_rows
from llm.prompt import ChatPrompt, Vocabulary
from tools.pocket.data.sample import Clip, Media, Picture, Sample
from tools.pocket.special_tokens import EOS, IM_START

PADS = {"image": "<|image_pad|>", "video": "<|video_pad|>", "audio": "<|audio_pad|>"}


@dataclass
class Example:
    """``ids`` and, of the same length, ``supervised``: which of them the model must predict.

    ``vision`` and ``audio``: positions of embedding rows, in the order of the encoders' output.
    ``turns``: (start, stop) of each supervised run. ``media``: what the rows are made from.
    ``pointers``: where answers have to look, and ``before``: where rows of media do, at what
    came before (``pointers``). ``row_labels``: what rows hold, by kind (``row_labels``).
    """

    skill: str
    ids: list[int]
    supervised: list[bool]
    vision: list[int] = field(default_factory=list)
    audio: list[int] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)
    media: Any = None
    pointers: list[Any] = field(default_factory=list)
    before: list[Any] = field(default_factory=list)
    row_labels: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


class ChatEncoder:
    """Conversations to examples, with the tokenizer and template of a checkpoint directory."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
        config = json.loads((checkpoint / "config.json").read_text())
        added = self.tokenizer.added_tokens_decoder.values()
        self.vocabulary = Vocabulary(
            self.tokenizer,
            added=frozenset(str(token) for token in added),
            control=frozenset(str(token) for token in added if token.special),
            pads={
                "image": config["image_token_id"],
                "video": config["video_token_id"],
                "audio": config["audio_token_id"],
            },
        )
        self._start, self._end = (self._id(token) for token in (IM_START, EOS))
        self._think = [self._id("<think>"), self._id("</think>")]
        self._assistant = self.encode("assistant\n")

    def _id(self, token: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(token))

    def encode(self, text: str) -> list[int]:
        return self.vocabulary.encode(text)

    @property
    def fingerprint(self) -> str:
        """Names the tokenizer: ids mean something in states of the same one only."""
        text = self.tokenizer.backend_tokenizer.to_str()
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def count(self, text: str) -> int:
        """Number of tokens of a text."""
        return len(self.encode(text))

    def example(self, sample: Sample, layouts: Sequence[tuple[Segment, ...]] = ()) -> Example:
        """The conversation with its answer; ``layouts[k]`` places the rows of ``media[k]``."""
        embeddings = [
            Embedding(modality_of(medium), "00" * 32, layout, None)
            for medium, layout in zip(sample.media, layouts, strict=True)
        ]
        rows = [torch.empty(layout_rows(layout), 0) for layout in layouts]
        prompt = ChatPrompt(self.vocabulary, embeddings, rows)
        body = prompt.guard({"messages": sample.conversation, "tools": list(sample.tools)})
        rendered = self.tokenizer.apply_chat_template(
            body["messages"],
            tools=body["tools"] or None,
            tokenize=False,
            enable_thinking=sample.thinking,
        )
        ids = prompt.encode(rendered)
        example = Example(sample.skill, ids, [False] * len(ids), media=sample.media)
        for span in prompt.spans:
            positions = example.audio if span.modality == "audio" else example.vision
            for first, count in span.offsets:
                positions.extend(range(first, first + count))
        example.vision.sort()
        example.audio.sort()
        self._supervise(example, sample.thinking)
        return example

    def _supervise(self, example: Example, thinking: bool) -> None:
        """Mark every assistant turn up to its end token, without what the template writes."""
        ids, opening = example.ids, [self._start, *self._assistant]
        at = 0
        while at < len(ids):
            if ids[at] != self._start or ids[at : at + len(opening)] != opening:
                at += 1
                continue
            first = at + len(opening)
            stop = ids.index(self._end, first) + 1
            if ids[first : first + 2] == self._think and not (thinking and stop == len(ids)):
                first += 2
            example.supervised[first:stop] = [True] * (stop - first)
            example.turns.append((first, stop))
            at = stop


def modality_of(medium: Media) -> Any:
    if isinstance(medium, Picture):
        return "image"
    return "video" if isinstance(medium, Clip) else "audio"
