"""Answers about a clip point at the rows of the event that they are about."""

from __future__ import annotations

import torch

from tests.tools.geometries import tiny
from tools.pocket.data.labels import IGNORE
from tools.pocket.data.sample import Message, assistant, user
from tools.pocket.train.clip_pointers import LEAST, Pointer, pointer_loss, pointers
from tools.pocket.train.example import Example
from tools.pocket.train.vision_data import MERGE, Labels
from tools.pocket.trunk.model import Layer, Trunk

# Rows at positions 2 to 6; something happens at second 1 (the second row) and 12 (the last two).
ROWS = {2: IGNORE, 3: 1, 4: IGNORE, 5: 12, 6: 12}


def labels() -> Labels:
    seconds = [
        second if patch == 1 else IGNORE for second in ROWS.values() for patch in range(MERGE**2)
    ]
    nothing = torch.zeros(0)
    return Labels(nothing, nothing, nothing, nothing, nothing, nothing, torch.tensor(seconds))


def asked(*pairs: tuple[str, str]) -> tuple[Example, list[Message]]:
    """An example whose ids after the rows are characters of the answers, one after the other."""
    ids, turns = [0] * 8, []
    conversation: list[Message] = []
    for question, answer in pairs:
        conversation += [user(question), assistant(answer)]
        turns.append((len(ids), len(ids) + len(answer) + 1))
        ids += [*map(ord, answer), 0]
    return Example("watch", ids, [], list(ROWS), turns=turns), conversation


def pointed(*pairs: tuple[str, str]) -> list[Pointer]:
    example, conversation = asked(*pairs)
    return pointers(example, conversation, labels(), lambda ids: "".join(map(chr, ids)))


def test_a_time_points_at_the_rows_of_its_second() -> None:
    found = pointed(("When does the red circle appear?", "00:12"))
    # The token before each character, and before the end, predicts it.
    assert found == [Pointer(position, (5, 6)) for position in range(7, 13)]


def test_the_lines_of_a_description_point_one_after_the_other() -> None:
    found = pointed(("Describe the video.", "00:01 a\n00:12 b"))
    assert [pointer.targets for pointer in found] == [(3,)] * 8 + [(5, 6)] * 8


def test_a_time_in_the_question_and_first_and_last() -> None:
    assert {p.targets for p in pointed(("What does it do at 00:01?", "it appears"))} == {(3,)}
    assert {p.targets for p in pointed(("What happens first?", "it appears"))} == {(3,)}
    assert {p.targets for p in pointed(("What happens last?", "it appears"))} == {(5, 6)}


def test_other_questions_and_unknown_seconds_point_nowhere() -> None:
    assert pointed(("What is said in the video?", "red"), ("When does it end?", "00:07")) == []


def test_the_loss_is_the_share_of_attention_that_misses_the_targets() -> None:
    torch.manual_seed(0)
    text = tiny().text
    trunk = Trunk(text)
    layer = next(x for x in trunk.layers if not x.attention.window)  # type: ignore[union-attr]
    assert isinstance(layer, Layer)
    attention = layer.attention
    x = torch.randn(2, 16, text.hidden_size, requires_grad=True)
    angles = trunk.angles(16, sliding=False)
    plain, watching = Example("look", [], []), Example("watch", [], [])
    assert pointer_loss(layer, x, angles, [plain, watching]).item() == 0.0
    watching.pointers = [Pointer(9, (2, 4)), Pointer(12, (2,))]
    loss = pointer_loss(layer, x, angles, [plain, watching])
    q, k, _ = attention.project(layer.input_norm(x), angles)
    expected = []
    for group in range(attention.groups):
        head = group * (attention.heads // attention.groups)
        for at, targets in ((9, [2, 4]), (12, [2])):
            shares = (k[1, : at + 1, group] @ q[1, at, head]).softmax(0)
            expected.append(-(shares[targets].sum() + LEAST).log())
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    optim = torch.optim.Adam(attention.parameters(), 0.01)
    for _ in range(100):
        optim.zero_grad()
        pointer_loss(layer, x.detach(), angles, [plain, watching]).backward()
        optim.step()
    assert pointer_loss(layer, x, angles, [plain, watching]).item() < 0.3 * loss.item()
