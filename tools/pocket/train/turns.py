"""The order of questions about the same media in training."""

from __future__ import annotations

from dataclasses import replace

from tools.pocket.data.sample import Message, Sample, text_of


def telling_last(sample: Sample) -> Sample:
    """The same questions and answers, short answers first.

    After a description every other answer can be read off the text; before it, each has to be
    found in the media.
    """
    messages = sample.conversation
    pairs = list(zip(messages[::2], messages[1::2], strict=True))
    media, first = _split(pairs[0][0])
    pairs[0] = ({**pairs[0][0], "content": first}, pairs[0][1])
    pairs.sort(key=lambda pair: len(pair[1]["content"]))
    asked = {"type": "text", "text": pairs[0][0]["content"]}
    pairs[0] = ({**pairs[0][0], "content": [*media, asked]}, pairs[0][1])
    ordered = [message for pair in pairs for message in pair]
    return replace(sample, messages=ordered[:-1], answer=ordered[-1])


def _split(message: Message) -> tuple[list[Message], str]:
    """Media parts and text of a user message."""
    media = [part for part in message["content"] if part["type"] == "media"]
    return media, text_of(message)
