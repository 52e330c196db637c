"""Where answers about texts look, and which words are counted."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from tools.pocket.data.mixture import sample
from tools.pocket.data.sample import Sample, assistant, user
from tools.pocket.special_tokens import EOS
from tools.pocket.train.example import ChatEncoder, Example
from tools.pocket.train.pointers import Pointer
from tools.pocket.train.text_mix import varied
from tools.pocket.train.text_targets import MOST, copied, occurrences


@pytest.fixture(scope="module")
def encoder() -> ChatEncoder:
    return ChatEncoder(Path("models/pocket"))


def made(encoder: ChatEncoder, question: str, answer: str, thinking: bool = False) -> Example:
    told = Sample("copy", [user(question)], assistant(answer), thinking=thinking)
    return encoder.example(told)


def shown(encoder: ChatEncoder, example: Example, found: list[Pointer]) -> list[tuple[str, str]]:
    """(token of the answer, what it points at)."""
    decode = encoder.tokenizer.decode
    ids = example.ids
    return [(decode([ids[p.position + 1]]), decode([ids[i] for i in p.targets])) for p in found]


def test_a_repeated_passage_points_at_itself_and_at_its_end(encoder: ChatEncoder) -> None:
    example = made(encoder, "Repeat this: house red", "house red")
    found = shown(encoder, example, copied(example, [0, 1], encoder.tokenizer.decode)[0])
    assert "".join(told for told, _ in found) == f"house red{EOS}"
    assert found[0] == (found[0][0], " house")  # tokens differ after a space
    assert found[-2:] == [(" red", " red"), (EOS, EOS)]


def test_what_separates_items_points_at_what_separates_them(encoder: ChatEncoder) -> None:
    example = made(encoder, "Copy this: 7 0", "7 0")
    found, _ = copied(example, [0, 1], encoder.tokenizer.decode)
    assert shown(encoder, example, found) == [("7", "7"), (" ", " "), ("0", "0"), (EOS, EOS)]


def test_a_reversed_passage_ends_before_its_begin(encoder: ChatEncoder) -> None:
    example = made(encoder, "Reverse this: KKB", "BKK", thinking=True)
    found, _ = copied(example, [2, 1, 0], encoder.tokenizer.decode)
    assert shown(encoder, example, found)[:3] == [("B", "B"), ("K", "K"), ("K", "K")]
    second, first = (pointer.targets[0] for pointer in found[1:3])
    assert second == first + 1
    assert shown(encoder, example, found)[3] == (EOS, ":")


def test_a_sorted_passage_has_no_place_for_its_end(encoder: ChatEncoder) -> None:
    example = made(encoder, "Sort this: 5 2 8", "2 5 8")
    found = shown(encoder, example, copied(example, [1, 0, 2], encoder.tokenizer.decode)[0])
    assert [pair for pair in found if pair[0] != " "] == [("2", "2"), ("5", "5"), ("8", "8")]


@pytest.mark.parametrize("passage", ["7 0 7 7", "red two red red"])
def test_a_repeated_item_knows_which_one_it_is(encoder: ChatEncoder, passage: str) -> None:
    example = made(encoder, f"Repeat this: {passage}", passage)
    decode = encoder.tokenizer.decode
    _, labels = copied(example, [0, 1, 2, 3], decode)
    ((first, _),) = example.turns
    for told in (
        [(at, classes) for at, classes in labels if at < first],
        [(at, classes) for at, classes in labels if at >= first],
    ):
        tokens = [(decode([example.ids[at]]), classes) for at, classes in told]
        runs = [next(group) for _, group in groupby(tokens, key=lambda token: token[1])]
        assert [classes for _, classes in runs] == [(0, 0), (1, 0), (2, 1)]
        assert "".join(token for token, _ in tokens).strip().removesuffix(EOS) == passage


@pytest.mark.parametrize("skill", ["copy", "long", "rearrange"])
def test_every_token_of_generated_passages_points_at_its_like(
    encoder: ChatEncoder, skill: str
) -> None:
    seen = 0
    for index in range(60):
        item = sample(skill, "heldout", 3, index)
        order = item.detail.get("order")
        if order is None:
            continue
        example = encoder.example(varied(item, index))
        found, _ = copied(example, order, encoder.tokenizer.decode)
        for told, source in shown(encoder, example, found)[:-1]:
            assert told.strip() in source
        seen += len(found)
    assert seen > 300


def test_an_answer_that_counts_points_at_the_last_one(encoder: ChatEncoder) -> None:
    decode = encoder.tokenizer.decode
    example = made(encoder, "How many times does red occur? red green red six", "two")
    found, labels = occurrences(example, decode)
    ids = example.ids
    assert [(decode([ids[at]]), count) for at, (count,) in labels] == [
        (" red", 1),
        (" green", 1),
        (" red", 2),
        (" six", 1),
        (" red", 0),
    ]
    assert {pointer.targets for pointer in found} == {(labels[2][0],)}
    assert [pointer.position + 1 for pointer in found] == list(range(*example.turns[0]))


def test_what_never_occurs_points_at_the_question(encoder: ChatEncoder) -> None:
    example = made(encoder, "How many times does blue occur? red six", "zero")
    found, labels = occurrences(example, encoder.tokenizer.decode)
    assert {pointer.targets for pointer in found} == {(labels[-1][0],)}
    assert labels[-1][1] == (0,)


def test_counts_end_somewhere_and_other_questions_have_none(encoder: ChatEncoder) -> None:
    question = f"How many times does red occur? {'red ' * (MOST + 2)}red"
    _, labels = occurrences(made(encoder, question, "ten"), encoder.tokenizer.decode)
    assert max(count for _, (count,) in labels) == MOST
    other = made(encoder, "Count from 1 to 3.", "1 2 3")
    assert occurrences(other, encoder.tokenizer.decode) == ([], [])
