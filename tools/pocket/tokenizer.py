"""Byte-level BPE of the pocket model, trained on the project's own text.

Pre-tokenizer rules: every digit stands alone; capitals never merge with each other (so a
reading answer is one token for each character); a word may merge fully, with the space
before it; punctuation merges in pairs at most and a tag always opens a piece. There is no
normaliser: decoding gives back exactly the text that was encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.pocket.special_tokens import EOS, PAD, SPECIAL_TOKENS

PATTERN = "|".join(
    (
        r"\p{N}",
        r" ?\p{Lu}?\p{Ll}+",
        r"\p{Lu}",
        r" ?[\p{Lt}\p{Lm}\p{Lo}\p{M}]+",
        r" ?</?",
        r" ?[^\s\p{L}\p{M}\p{N}<]{1,2}",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train to exactly ``vocab_size`` entries: 256 bytes, merges, then the special tokens.

    Raises ``ValueError`` when the text has too few pairs to fill the vocabulary.
    """
    base = vocab_size - len(SPECIAL_TOKENS)
    if base < 256:
        raise ValueError(f"vocabulary of {vocab_size} cannot hold 256 bytes and the special tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=base,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != base:
        raise ValueError(f"the text gave {tokenizer.get_vocab_size()} entries, {base} were asked")
    for text, special in SPECIAL_TOKENS:
        token = AddedToken(text, special=special, normalized=False)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, chat_template: str, max_length: int, out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja below ``out``."""
    tokenizer.save(str(out / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(text)): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": special,
        }
        for text, special in SPECIAL_TOKENS
    }
    config = {
        # Not Qwen2Tokenizer: that class rebuilds Qwen's own pre-tokenizer over ours.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "additional_special_tokens": [
            text for text, special in SPECIAL_TOKENS if special and text not in (EOS, PAD)
        ],
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": max_length,
        "chat_template": chat_template,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (out / "tokenizer_config.json").write_text(text)
    (out / "chat_template.jinja").write_text(chat_template)
