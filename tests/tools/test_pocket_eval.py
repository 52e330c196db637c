"""The evaluation's scoring, wiring and arithmetic, on a client without a model."""

from __future__ import annotations

import base64
import io
import json
import wave
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tools.pocket.data.chat import TALK
from tools.pocket.data.mixture import sample
from tools.pocket.data.sample import Picture, Sample, Sound, assistant, user
from tools.pocket.eval.client import Answer, Client, Question, questions
from tools.pocket.eval.measure import Result, accept_lengths, lines, measure
from tools.pocket.eval.rows import Row
from tools.pocket.eval.scoring import characters, events, exact, marks, words
from tools.pocket.eval.talk import PROMPTS, sensible


def test_words_lose_one_mark_for_each_edit() -> None:
    caption = "top: large red circle; left: small blue star."
    assert words(caption, caption) == (8, 8)
    assert words(caption.replace("red", "green"), caption) == (7, 8)
    assert words("top: large red circle", caption) == (4, 8)
    assert words("", "red") == (0, 1)
    assert words("no " * 20, "red blue") == (0, 2)


def test_characters_ignore_case_and_count_edits() -> None:
    assert characters(" ab12", "AB12") == (4, 4)
    assert characters("AB2", "AB12") == (3, 4)


def test_events_are_lines_in_order() -> None:
    told = "00:01 a\n00:02 b\n00:03 c"
    assert events(told, told) == (3, 3)
    assert events("00:01 a\n00:03 c", told) == (2, 3)
    assert events("00:02 b\n00:01 a\n00:03 c", told)[0] < 3
    assert events(told + "\n00:04 d", told) == (2, 3)


def test_exact_answers_and_json_documents() -> None:
    assert exact(" 57\n", "57") == (1, 1)
    assert exact('{"b": 1,\n "a": [2]}', '{"a": [2], "b": 1}') == (1, 1)
    assert exact('{"a": 1}', '{"a": 2}') == (0, 1)
    assert exact("hello", '{"a": 2}') == (0, 1)


def test_tool_calls_must_name_the_tool_and_its_arguments() -> None:
    def message(name: str, arguments: Any) -> dict[str, Any]:
        return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}

    wanted = message("f", {"city": "rome"})
    assert marks(message("f", '{"city": "rome"}'), wanted, "exact") == (1, 1)
    assert marks(message("g", '{"city": "rome"}'), wanted, "exact") == (0, 1)
    assert marks(message("f", "not json"), wanted, "exact") == (0, 1)
    assert marks(assistant("rome"), wanted, "exact") == (0, 1)
    assert marks(wanted, assistant("rome"), "exact") == (0, 1)


def test_forty_prompts_whose_trained_replies_are_sensible() -> None:
    assert len(PROMPTS) == len({prompt for prompt, _ in PROMPTS}) == 40
    replies = {question: answer for asked, answer in TALK for question in asked}
    known = [(p, pattern) for p, pattern in PROMPTS if p in replies]
    assert len(known) >= 10
    assert all(sensible(replies[prompt], pattern) for prompt, pattern in known)
    assert not sensible("", "hello")
    assert not sensible("hello hello hello", "hello")
    assert not sensible("hello " + "x" * 300, "hello")
    assert not sensible("goodbye", "welcome")


def test_media_go_over_the_wire_as_files() -> None:
    pixels = np.zeros((40, 60, 3), np.uint8)
    sound = Sound(np.full(2400, 0.5, np.float32), 24_000)
    made = Sample(
        "mixed", [user(0, "and", 1, 2)], assistant("x"), (Picture(pixels), sound, Picture(pixels))
    )
    (question,) = questions(made)
    first, _, heard, second = question.messages[0]["content"]
    forms = []
    for part in (first, second):
        kind, data = part["image_url"]["url"].split(";base64,")
        image = Image.open(io.BytesIO(base64.b64decode(data)))
        forms.append((kind, image.format, image.size))
    assert forms[0] == ("data:image/png", "PNG", (60, 40))
    assert (
        questions(made, 1)[0]
        .messages[0]["content"][0]["image_url"]["url"]
        .startswith("data:image/jpeg")
    )
    assert heard["input_audio"]["format"] == "wav"
    with wave.open(io.BytesIO(base64.b64decode(heard["input_audio"]["data"]))) as file:
        assert (file.getframerate(), file.getnframes()) == (24_000, 2400)


def test_every_turn_is_asked_after_the_true_ones() -> None:
    made = Sample("chat", [user("a"), assistant("b"), user("c")], assistant("d"))
    asked = questions(made)
    assert [q.wanted["content"] for q in asked] == ["b", "d"]
    assert asked[1].messages == [user("a"), assistant("b"), user("c")]


def test_tool_calls_in_the_history_carry_their_arguments_as_text() -> None:
    made = next(
        s for s in (sample("tool", "heldout", 0, i) for i in range(50)) if len(s.messages) > 1
    )
    (question,) = questions(made)  # the call is given, the sentence made from its result is asked
    call = question.messages[1]["tool_calls"][0]["function"]
    assert isinstance(json.loads(call["arguments"]), dict)
    assert question.wanted["content"]


class Echo(Client):
    """Answers with the last user text and claims 12 tokens in 4 steps."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def ask(self, question: Question, greedy: bool = False) -> Answer:
        self.asked.append(greedy)
        text = question.messages[-1]["content"]
        return Answer(assistant(text), 24 if text == "long" else 12, 4)


def row(bar: float | None, wanted: str) -> Row:
    texts = ("long", "b")
    return Row(
        "r", "answers", bar, lambda i: Sample("x", [user(texts[i])], assistant(wanted)), 2, 1
    )


def test_measure_adds_up_and_compares_with_the_bar() -> None:
    client = Echo()
    result = measure(client, row(0.6, "b"), quick=False)
    assert (result.right, result.total, result.value, result.met) == (1, 2, 0.5, False)
    assert result.wrong == ["'long' for 'b'"]
    assert client.asked == [False, False]
    assert measure(client, row(0.6, "long"), quick=True).met
    assert measure(client, row(None, "c"), quick=True).met


def test_accept_length_is_tokens_for_each_verify_step() -> None:
    client = Echo()
    long, everything = accept_lengths(client, [Row("r", "a", 1, row(1, "b").make, 10, 2)], True)
    assert client.asked == [True, True]
    assert (everything.right, everything.total) == (36, 8)
    assert (long.value, long.bar, long.met) == (6.0, 3.0, True)


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (Result("look", "attributes", 0.95, 96, 100), "| look | 96.0 % | 95 % | yes | 100 attri"),
        (Result("a", "words", 0.95, 9, 10), "| a | 90.0 % | 95 % | no | 10 words |"),
        (Result("b", "words", None, 9, 10), "| b | 90.0 % | reported |  | 10 words |"),
        (Result("m", "tokens a step", 3.0, 62, 20), "| m | 3.10 | 3.0 | yes | 20 steps |"),
    ],
)
def test_lines_of_the_table(result: Result, line: str) -> None:
    assert lines([result])[-1].startswith(line)
