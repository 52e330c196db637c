"""The byte-level tokenizer: pieces, round trips, special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from tools.pocket.corpus import SKILLS, documents
from tools.pocket.special_tokens import SPECIAL_TOKENS, special_ids
from tools.pocket.tokenizer import train_tokenizer

POCKET = Path(__file__).parents[2] / "models" / "pocket"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(POCKET, trust_remote_code=True)


def pieces(tokenizer: Any, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer.encode(text)]


def test_vocabulary_is_bytes_merges_specials(tokenizer: Any) -> None:
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(768))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert len(alphabet) == 256
    assert {vocabulary[c] for c in alphabet} == set(range(256))


def test_specials_are_the_last_ids_and_encode_to_themselves(tokenizer: Any) -> None:
    ids = special_ids(768)
    assert list(ids.values()) == list(range(768 - 20, 768))
    for text, special in SPECIAL_TOKENS:
        assert tokenizer.encode(text) == [ids[text]]
        assert tokenizer.encode(f"a{text}b") == [
            *tokenizer.encode("a"),
            ids[text],
            *tokenizer.encode("b"),
        ]
        # Think and tool tags must reach the parsers even when special tokens are skipped.
        assert tokenizer.decode([ids[text]], skip_special_tokens=True) == ("" if special else text)
    assert {t for t, special in SPECIAL_TOKENS if not special} == {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    }
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        ids["<|im_end|>"],
        ids["<|endoftext|>"],
    )
    assert tokenizer.bos_token_id is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  spaces  ",
        "\r\n\t \n\n",
        "naïve café",
        "e\u0301 is not \u00e9",  # no normalisation: the combining accent survives
        "日本語 и عربى",
        "👩‍👩‍👧‍👦🏳️‍🌈 😀",
        "\x00\x01\x7f\u200b\ufeff\ufffd",
        "𝔘𝔫𝔦 Ǆ ǅ ₂ Ⅻ",
        "".join(map(chr, range(256))),
    ],
)
def test_round_trip(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip_of_any_text(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_outside_the_corpus_falls_back_to_bytes(tokenizer: Any) -> None:
    # case 95: streaming meets such splits: one emoji is four tokens, each an incomplete character.
    ids = tokenizer.encode("😀")
    assert len(ids) == 4
    assert all(i < 256 for i in ids)


def test_digits_and_capitals_stand_alone(tokenizer: Any) -> None:
    assert pieces(tokenizer, "2024") == list("2024")
    assert pieces(tokenizer, "HELLO") == list("HELLO")
    assert pieces(tokenizer, " HI 12") == [" ", "H", "I", " ", "1", "2"]


def test_common_words_are_one_token(tokenizer: Any) -> None:
    assert pieces(tokenizer, "red circle") == ["red", " circle"]
    assert pieces(tokenizer, "The first") == ["The", " first"]


def test_tags_never_merge_with_what_stands_before(tokenizer: Any) -> None:
    assert pieces(tokenizer, '"]}</parameters>') == ['"]', "}", "</", "parameters", ">"]


def test_project_text_is_compact(tokenizer: Any) -> None:
    texts = list(documents(220, seed=9))
    tokens = sum(len(tokenizer.encode(text)) for text in texts)
    assert sum(len(text.encode()) for text in texts) / tokens > 2.8


def test_corpus_is_deterministic_and_covers_every_skill() -> None:
    assert list(documents(50, seed=1)) == list(documents(50, seed=1))
    assert list(documents(50, seed=1)) != list(documents(50, seed=2))
    assert len(set(documents(len(SKILLS), seed=0))) == len(SKILLS)


def test_vocabulary_that_cannot_be_filled_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot hold 256 bytes"):
        train_tokenizer(["abc"], 270)
    with pytest.raises(ValueError, match="entries"):
        train_tokenizer(["abc abc"], 768)
