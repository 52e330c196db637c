"""Training of the pocket trunk on text: rows, curriculum, batches, steps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from encoders.embedding import Rows, Special, audio_layout, image_layout
from tests.tools.geometries import tiny
from tools.pocket.data.mixture import recall_sample, sample
from tools.pocket.data.sample import Picture, Sample, Sound, assistant, user
from tools.pocket.init import write_text_files
from tools.pocket.spec import PocketSpec
from tools.pocket.train.batches import Mixer, collate, split
from tools.pocket.train.example import ChatEncoder, Example
from tools.pocket.train.objectives import PreviousHeads, Tally
from tools.pocket.train.run import optimizer
from tools.pocket.train.text_mix import SHARES, Reach, TextMix
from tools.pocket.train.tokens_recall import FORMS, Level, tokens_recall
from tools.pocket.train.trunk import TrunkTraining


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> ChatEncoder:
    out = tmp_path_factory.mktemp("text")
    write_text_files(PocketSpec(), out)
    return ChatEncoder(out)


def supervised_text(encoder: ChatEncoder, example: Example) -> list[str]:
    return [encoder.tokenizer.decode(example.ids[a:b]) for a, b in example.turns]


def test_only_what_the_model_must_write_is_supervised(encoder: ChatEncoder) -> None:
    made = Sample("chat", [user("Hi"), assistant("Hello!"), user("Who?")], assistant("Me."))
    example = encoder.example(made)
    assert supervised_text(encoder, example) == ["Hello!<|im_end|>", "Me.<|im_end|>"]
    marked = [i for first, stop in example.turns for i in range(first, stop)]
    assert [i for i, on in enumerate(example.supervised) if on] == marked


def test_reasoning_is_supervised_and_tool_calls_are_written_as_the_template_does(
    encoder: ChatEncoder,
) -> None:
    thought = encoder.example(sample("think", "train", 0, 0))
    (text,) = supervised_text(encoder, thought)
    assert text.startswith("<think>")
    assert "</think>" in text
    called = Sample(
        "tool",
        [user("Rome?")],
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"city": "rome"}}}],
        },
        tools=({"function": {"name": "f"}},),
    )
    (text,) = supervised_text(encoder, encoder.example(called))
    expected = "<tool_call>\n<function=f>\n<parameter=city>rome</parameter>\n</function>\n"
    assert text == expected + "</tool_call><|im_end|>"


def test_the_prompt_is_what_the_template_gives_for_generation(encoder: ChatEncoder) -> None:
    made = sample("copy", "train", 0, 5)
    example = encoder.example(made)
    prompt = encoder.tokenizer.apply_chat_template(
        made.messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert example.ids[: example.turns[-1][0]] == encoder.encode(prompt)


def test_media_rows_stand_at_the_pads_in_order(encoder: ChatEncoder) -> None:
    import numpy as np

    picture = Picture(np.zeros((8, 8, 3), np.uint8))
    sound = Sound(np.zeros(8, np.float32), 24_000)
    question = user(0, "and", 1, 2)
    made = Sample("look", [question], assistant("a"), (picture, sound, picture))
    layouts = [image_layout(3), audio_layout(2), image_layout(4)]
    example = encoder.example(made, layouts)
    image, audio = (encoder.vocabulary.pads[name] for name in ("image", "audio"))
    assert [example.ids[i] for i in example.vision] == [image] * 7
    assert [example.ids[i] for i in example.audio] == [audio] * 2
    assert example.vision == sorted(example.vision)
    video = (Special("<|mimo_video_start|>"), Rows("video", 2), Rows("audio", 1))
    mixed = encoder.example(replace(made, media=(picture,), messages=[user(0)]), [video])
    assert (len(mixed.vision), len(mixed.audio)) == (2, 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [64, 256])
def test_every_asked_value_was_defined_before(form: str, length: int) -> None:
    for seed in range(10):
        example = tokens_recall(random.Random(seed), Level(form, length), 700)
        assert length - 4 < len(example) <= length
        size = {"pairs": 1, "records": 2, "separated": 2}[form]
        key_size = size + (form == "separated")
        assert example.turns
        for first, stop in example.turns:
            assert stop - first == size
            asked = example.ids[first - key_size : stop]
            earlier = example.ids[: first - key_size]
            starts = range(len(earlier) - len(asked) + 1)
            assert any(earlier[i : i + len(asked)] == asked for i in starts)


def test_levels_rise_with_accuracy_only() -> None:
    level = Level()
    for _ in range(50):
        level = level.after(0.5, 256)
    assert (level.form, level.length) == ("pairs", 64)
    seen = []
    for _ in range(600):
        level = level.after(0.99, 256)
        if not seen or seen[-1] != (level.form, level.length):
            seen.append((level.form, level.length))
    assert seen == [("pairs", 64), ("records", 96), ("separated", 128), ("separated", 256)]
    reach = Reach()
    for _ in range(300):
        reach = reach.after(1.0, 1024)
    assert reach.length == 1024


def test_rows_are_grouped_by_length_within_the_budget() -> None:
    examples = [Example("s", [0] * n, [False] * n) for n in (5, 60, 33, 7, 64, 300)]
    groups = split(examples, 128, 32)
    assert [[len(e) for e in group] for group in groups] == [[5, 7], [33, 60], [64], [300]]
    batch = collate(groups[1], 32)
    assert batch.ids.shape == (2, 64)
    assert batch.valid.sum(1).tolist() == [33, 60]


def test_a_seed_gives_the_same_batches_and_a_place_resumes_them() -> None:
    def make(skill: str, index: int) -> Example:
        count = 4 + (index * 7 + len(skill)) % 50
        return Example(skill, [index] * count, [True] * count)

    def mixer() -> Mixer:
        return Mixer(make, {"a": 1.0, "bb": 2.0}, seed=3, budget=256, multiple=32)

    first = mixer().batches()
    ids = [next(first).ids for _ in range(40)]
    again = mixer()
    stream = again.batches()
    for _ in range(20):
        next(stream)
    resumed = mixer()
    resumed.pool, resumed.place = again.pool, again.place
    rest = resumed.batches()
    assert all(torch.equal(next(rest).ids, ids[i]) for i in range(20, 40))


def test_tally_counts_tokens_and_whole_turns() -> None:
    example = Example("s", [0] * 6, [False, True, True, False, True, False])
    example.turns = [(1, 3), (4, 5)]
    tally = Tally()
    tally.add(collate([example], 8), torch.tensor([[0, 1, 0, 0, 1, 0, 0, 0]]).bool())
    assert tally.accuracy("tokens") == {"s": 2 / 3}
    assert tally.accuracy() == {"s": 1 / 2}


def test_previous_heads_are_scored_on_the_tokens_before() -> None:
    heads = PreviousHeads(hidden=8, vocabulary=8)
    with torch.no_grad():
        heads.heads.weight.copy_(20 * torch.eye(8).repeat(3, 1))
    # The stream names a token; all three heads repeat it, so rows of one token are predicted.
    batch = collate([Example("s", [5] * 32, [False] * 32)], 32)
    early = torch.nn.functional.one_hot(batch.ids, 8).float()
    generator = torch.Generator().manual_seed(0)
    assert heads.loss(early, batch, generator) < 1e-3
    other = torch.nn.functional.one_hot(batch.ids - 1, 8).float()
    assert heads.loss(other, batch, generator) > 10


def training(encoder: ChatEncoder) -> TrunkTraining:
    text = replace(tiny().text, vocab_size=768, sliding_window=32)
    return TrunkTraining(encoder, replace(tiny(), text=text))


def test_steps_learn_and_a_state_goes_on_where_it_was(encoder: ChatEncoder) -> None:
    first = training(encoder)
    first.mixer.budget = 512
    optim = optimizer([first.trunk, first.previous], 5e-3)
    losses = [first.step(i, optim)["previous"] for i in range(20)]
    assert sum(losses[-5:]) / 5 < losses[0] - 0.05
    second = training(encoder)
    second.restore(first.state())
    assert second.mix.state() == first.mix.state()
    assert second.mixer.pool == first.mixer.pool + 1
    ids = collate([encoder.example(sample("chat", "heldout", 0, 0))], 32).ids
    with torch.no_grad():
        one, two = (t.trunk.eval()(t.trunk.embed(ids)).hidden for t in (first, second))
    assert torch.equal(one, two)
    broken = {**first.state(), "tokenizer": "another"}
    with pytest.raises(ValueError, match="another tokenizer"):
        second.restore(broken)


def test_some_samples_teach_to_open_and_close_empty_thoughts(encoder: ChatEncoder) -> None:
    mix = TextMix(encoder, 0, 748)
    texts = [supervised_text(encoder, mix.make("copy", i))[-1] for i in range(16)]
    thinking = [i for i, text in enumerate(texts) if text.startswith("<think></think>")]
    assert thinking == [5]


def test_shares_follow_the_weakest_skill(encoder: ChatEncoder) -> None:
    mix = TextMix(encoder, 0, 748)
    mix.accuracy = {"copy": 0.99, "json": 0.5}
    mix.level = Level("separated", 2048, 0.99, 50)
    shares = mix.shares()
    least, most = (shares[skill] / SHARES[skill] for skill in ("copy", "json"))
    assert most == pytest.approx(5 * least)
    assert shares["tokens"] < 5
    made = recall_sample("train", 0, 0, encoder.count, 512, 4)
    assert len(encoder.example(made)) == pytest.approx(512, abs=80)
