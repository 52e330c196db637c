"""Golden strings of the chat template (mimo-v2.md section 7.2 and 7.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers import AutoTokenizer

POCKET = Path(__file__).parents[2] / "models" / "pocket"
SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>"
DIRECT = "<|im_start|>assistant\n<think></think>"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(POCKET, trust_remote_code=True)


def render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    options = {"add_generation_prompt": True, **options}
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_one_turn_without_system_message(tokenizer: Any) -> None:
    text = render(tokenizer, [user("Hello")])
    assert text == f"{SYSTEM}<|im_start|>user\nHello<|im_end|>{DIRECT}"


def test_both_copies_of_the_template_are_the_same(tokenizer: Any) -> None:
    assert tokenizer.chat_template == (POCKET / "chat_template.jinja").read_text()


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, DIRECT),
        ({"enable_thinking": False}, DIRECT),
        ({"enable_thinking": True}, "<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, ""),
        ({"add_generation_prompt": False, "enable_thinking": True}, ""),
    ],
)
def test_generation_prompt(tokenizer: Any, options: dict[str, Any], end: str) -> None:
    text = render(tokenizer, [user("Hi")], **options)
    assert text == f"{SYSTEM}<|im_start|>user\nHi<|im_end|>{end}"


def test_many_turns_with_reasoning_in_history(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        user("One?"),
        {"role": "assistant", "reasoning_content": "hm", "content": "1"},
        user("Two?"),
        {"role": "assistant", "content": "2"},
        user("Three?"),
    ]
    start = "<|im_start|>system\nBe short.<|im_end|><|im_start|>user\nOne?<|im_end|>"
    rest = (
        "<|im_start|>user\nTwo?<|im_end|>"
        "<|im_start|>assistant\n<think></think>2<|im_end|>"
        f"<|im_start|>user\nThree?<|im_end|>{DIRECT}"
    )
    kept = "<|im_start|>assistant\n<think>hm</think>1<|im_end|>"
    dropped = "<|im_start|>assistant\n<think></think>1<|im_end|>"
    assert render(tokenizer, messages) == start + kept + rest
    assert render(tokenizer, messages, keep_all_reasoning=False) == start + dropped + rest


def test_an_earlier_prompt_is_a_prefix_of_the_next(tokenizer: Any) -> None:
    # Prefix reuse between turns: the served turn must come back unchanged as history.
    first = [user("Hi")]
    reply = "Hello!<|im_end|>"
    second = [*first, {"role": "assistant", "content": "Hello!"}, user("More")]
    assert render(tokenizer, second).startswith(render(tokenizer, first) + reply)


def test_tools_calls_and_results(tokenizer: Any) -> None:
    call = {
        "function": {
            "name": "get_weather",
            "arguments": {"city": "Oslo", "days": 2, "hours": [1, 2], "units": {"t": "°C"}},
        }
    }
    messages = [
        user("Weather?"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": "snow"},
        {"role": "assistant", "content": "Look:", "tool_calls": [call["function"], call]},
        {"role": "tool", "content": "sun"},
    ]
    block = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n"
        "<parameter=days>2</parameter>\n<parameter=hours>[1, 2]</parameter>\n"
        '<parameter=units>{"t": "°C"}</parameter>\n</function>\n</tool_call>'
    )
    assert render(tokenizer, messages, tools=[WEATHER]) == (
        "<|im_start|>system\nYou are a helpful assistant.\n\n"
        "# Tools\n\nYou may call these functions:\n<tools>\n<function>\n"
        "<name>get_weather</name>\n<description>Weather of a city</description>\n"
        '<parameters>{"type": "object", "properties": {"city": {"type": "string"}}}'
        "</parameters>\n</function>\n</tools>\n\nTo call one, write:\n"
        "<tool_call>\n<function=NAME>\n<parameter=KEY>VALUE</parameter>\n</function>\n"
        "</tool_call><|im_end|><|im_start|>user\nWeather?<|im_end|>"
        f"<|im_start|>assistant\n<think></think>{block}<|im_end|>"
        "<|im_start|>tool\n<tool_response>\nrain\n</tool_response>"
        "\n<tool_response>\nsnow\n</tool_response><|im_end|>"
        f"<|im_start|>assistant\n<think></think>Look:\n{block}\n{block}<|im_end|>"
        f"<|im_start|>tool\n<tool_response>\nsun\n</tool_response><|im_end|>{DIRECT}"
    )


def test_a_tool_without_description_or_parameters(tokenizer: Any) -> None:
    text = render(tokenizer, [user("x")], tools=[{"function": {"name": "now"}}])
    assert "<tools>\n<function>\n<name>now</name>\n</function>\n</tools>" in text


def test_content_parts_become_placeholders_in_order(tokenizer: Any) -> None:
    parts = [
        {"type": "text", "text": "A"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "B"},
        {"type": "video", "video": "x"},
        {"type": "input_audio", "input_audio": {}},
        {"type": "text", "text": "C"},
    ]
    assert render(tokenizer, [user(parts)]) == (
        f"{SYSTEM}<|im_start|>user\n"
        "A<|vision_start|><|image_pad|><|vision_end|>"
        "B<|vision_start|><|video_pad|><|vision_end|>"
        f"<|mimo_audio_start|><|audio_pad|><|mimo_audio_end|>C<|im_end|>{DIRECT}"
    )


def test_parts_are_allowed_in_every_role(tokenizer: Any) -> None:
    text = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": role, "content": text} for role in ("system", "user", "assistant")]
    assert render(tokenizer, messages, add_generation_prompt=False) == (
        "<|im_start|>system\nab<|im_end|><|im_start|>user\nab<|im_end|>"
        "<|im_start|>assistant\n<think></think>ab<|im_end|>"
    )


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (user([{"type": "smell"}]), "content part of unknown type: smell"),
        ({"role": "oracle", "content": "x"}, "message of unknown role: oracle"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            "arguments of tool call f must be an object",
        ),
    ],
)
def test_what_cannot_be_rendered_is_an_error(
    tokenizer: Any, message: dict[str, Any], error: str
) -> None:
    with pytest.raises(jinja2.TemplateError, match=error):
        render(tokenizer, [message])


def test_empty_and_missing_content(tokenizer: Any) -> None:
    messages: list[dict[str, Any]] = [user(""), {"role": "assistant", "content": None}]
    assert render(tokenizer, messages, add_generation_prompt=False) == (
        f"{SYSTEM}<|im_start|>user\n<|im_end|><|im_start|>assistant\n<think></think><|im_end|>"
    )
