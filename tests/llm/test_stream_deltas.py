"""Streamed deltas do not depend on how many tokens a step accepts.

A step with MTP hands the parsers one to four tokens at once. What they say in total, and the order
of reasoning, text and tool calls, has to be that of one token at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.entrypoints.openai.protocol import Function, Tool
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import ReasoningParser
from transformers import AutoTokenizer

TOOLS = [
    Tool(
        type="function",
        function=Function(
            name=name,
            parameters={
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        ),
    )
    for name in ("weather", "news")
]

CALL = (
    "<tool_call>\n<function={name}>\n<parameter=city>{city}</parameter>\n"
    "<parameter=days>{days}</parameter>\n</function>\n</tool_call>"
)
REPLIES = {
    "text": "The circle is red, the square is blue: 3 < 4 and 5 > 2.",
    "thinking": "<think>The circle is left of the square.</think>It is left.",
    "thinking only": "<think>I look at the image",
    "one call": "I will look. " + CALL.format(name="weather", city="Oslo", days=3),
    "two calls": CALL.format(name="weather", city="New York", days=10)
    + "\n"
    + CALL.format(name="news", city="a < b </x>", days=1),
    "thinking and a call": "<think>Which town? <b></think>"
    + CALL.format(name="news", city="Rome", days=2),
    "letters outside the vocabulary": "Zürich – 東京 🌊 naïve",
}


@pytest.fixture(scope="module")
def tokenizer(pocket_checkpoint: Path) -> Any:
    return AutoTokenizer.from_pretrained(pocket_checkpoint, trust_remote_code=True)


def stream(tokenizer: Any, tokens: list[int], groups: list[int]) -> list[tuple[str, str]]:
    """Deltas as (kind, text), neighbours of one kind joined; tool calls by number."""
    reasoning = ReasoningParser("mimo", stream_reasoning=True)
    calls = FunctionCallParser(TOOLS, "mimo")
    deltas: list[tuple[str, str]] = []

    def say(kind: str, text: str | None) -> None:
        if not text:
            return
        if deltas and deltas[-1][0] == kind:
            deltas[-1] = (kind, deltas[-1][1] + text)
        else:
            deltas.append((kind, text))

    def take(rest: str, end: bool = False) -> None:
        plain, items = calls.parse_stream_end() if end else calls.parse_stream_chunk(rest)
        say("content", plain)
        for item in items:
            say(f"name {item.tool_index}", item.name)
            say(f"arguments {item.tool_index}", item.parameters)

    said, at = "", 0
    for size in groups:
        at = min(len(tokens), at + size)
        text = tokenizer.decode(tokens[:at], skip_special_tokens=False)
        # Half a character waits for its other half, as in the detokenizer.
        if text.endswith("\ufffd") and at < len(tokens):
            continue
        new, said = text[len(said) :], text
        thought, rest = reasoning.parse_stream_chunk(new)
        say("reasoning", thought)
        if rest:
            take(rest)
    thought, rest = reasoning.parse_stream_end()
    say("reasoning", thought)
    if rest:
        take(rest)
    take("", end=True)
    return deltas


@pytest.mark.parametrize("name", REPLIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_deltas_of_any_grouping_are_those_of_single_tokens(
    tokenizer: Any, name: str, data: st.DataObject
) -> None:
    tokens = tokenizer.encode(REPLIES[name], add_special_tokens=False)
    single = stream(tokenizer, tokens, [1] * len(tokens))
    groups = data.draw(st.lists(st.integers(1, 4), min_size=len(tokens), max_size=len(tokens)))
    assert stream(tokenizer, tokens, groups) == single


def test_the_replies_mean_what_they_should(tokenizer: Any) -> None:
    """Else equal deltas could be equally wrong."""

    def told(name: str) -> dict[str, str]:
        tokens = tokenizer.encode(REPLIES[name], add_special_tokens=False)
        return dict(stream(tokenizer, tokens, [3] * len(tokens)))

    assert told("text") == {"content": REPLIES["text"]}
    assert told("thinking")["reasoning"] == "The circle is left of the square."
    assert told("thinking")["content"] == "It is left."
    both = told("two calls")
    assert (both["name 0"], both["name 1"]) == ("weather", "news")
    assert json.loads(both["arguments 0"]) == {"city": "New York", "days": 10}
    assert json.loads(both["arguments 1"]) == {"city": "a < b </x>", "days": 1}
