"""The order and the time of what happens in clips, asked of the shipped model in every codec.

The clips are the first that it understands as H.264 without sound; how much it understands of any
clip is measured by ``python -m tools.pocket.eval``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.application import Application
from tests.video.scripted import FORMATS, film
from tools.pocket.data.clip_questions import watch
from tools.pocket.data.sample import Clip, Message, Sample, assistant, stream, text_of
from tools.pocket.eval.client import Client, Question
from tools.pocket.eval.rows import SEED
from tools.pocket.eval.scoring import marks

pytestmark = pytest.mark.engine

SECONDS, TURNS = 8, 6
# Full-frame colours, and things that appear, move, turn and vanish.
COLOURS, THINGS = (0, 1, 2, 4, 5), (0, 1, 3, 4, 7)
ORDER, TIME = ("What happens", "List", "Describe", "Which colours"), ("When does",)
# A codec's losses may change an answer.
FLOOR = 0.75
KINDS = [
    (form, sound) for form in FORMATS for sound in (False, True) if not (form == "gif" and sound)
]
Film = tuple[float, int]  # the share of full-frame colours, 0 or 1, and a number
FILMS: list[Film] = [*((1.0, number) for number in COLOURS), *((0.0, number) for number in THINGS)]


@pytest.fixture(scope="module")
def asking(running: Application) -> Iterator[Client]:
    client = Client(running.url)
    yield client
    client.close()


def sample(of: Film) -> Sample:
    """A clip with a sound track, and questions."""
    colours, number = of
    name = "colours" if colours else "codecs"
    source = stream("heldout", name, SEED, number)
    return watch(source, TURNS, SECONDS, sound=1.0, colours=colours)


def questions(of: Film, form: str, sound: bool) -> list[Question]:
    """Those of a clip's questions that ask for order or time, each on its own."""
    made = sample(of)
    (clip,) = made.media
    assert isinstance(clip, Clip)
    data, kind = film(clip if sound else replace(clip, sound=None), form)
    uri = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    said = made.conversation
    pairs = zip(map(text_of, said[::2]), map(text_of, said[1::2]), strict=True)
    return [
        Question(made, [_asked(uri, question)], assistant(answer))
        for question, answer in pairs
        if question.startswith((*ORDER, *TIME))
    ]


def _asked(uri: str, question: str) -> Message:
    video = {"type": "video_url", "video_url": {"url": uri}}
    return {"role": "user", "content": [video, {"type": "text", "text": question}]}


def test_both_kinds_of_question_are_asked() -> None:
    texts = [text_of(q.messages[0]) for of in FILMS for q in questions(of, "gif", False)]
    for kind in (ORDER, TIME):
        assert sum(text.startswith(kind) for text in texts) >= len(FILMS)


@pytest.mark.parametrize(("form", "sound"), KINDS)
def test_order_and_time_are_right(asking: Client, form: str, sound: bool) -> None:
    right, total, wrong = 0.0, 0, []
    for of in FILMS:
        for question in questions(of, form, sound):
            answer = asking.ask(question, greedy=True)
            good, most = marks(answer.message, question.wanted, "events")
            right, total = right + good, total + most
            if good < most:
                wrong.append(f"{answer.message['content']!r} for {question.wanted['content']!r}")
    assert right >= FLOOR * total, f"{right:g} of {total}: {wrong}"
