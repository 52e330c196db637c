"""From an OpenAI chat with media slots to token ids and embedding spans.

The chat template is rendered by SGLang on messages whose media parts, and whose special-token
look-alikes, were replaced by markers no client can guess. The rendered string is then cut at
the markers: template text is tokenised with special tokens, a look-alike as plain text, and a
media slot becomes the pads of its embedding. So media is bound by structure, and a special
token typed by a user stays text.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from encoders.embedding import Embedding, Modality, Special, Text, modality_rows
from llm.rows import LeasedRows, SharedRows, pick

if TYPE_CHECKING:
    import torch


class Tokenizer(Protocol):
    """What is needed of a Hugging Face tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def convert_tokens_to_ids(self, token: str) -> int: ...


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer with its special tokens.

    ``added``: every added token's text; ``control``: those among them that are not ordinary
    assistant output (think and tool tags are). ``pads``: pad token id by modality.
    """

    tokenizer: Tokenizer
    added: frozenset[str]
    control: frozenset[str]
    pads: dict[Modality, int]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False) if text else []

    def encode_literally(self, token: str) -> list[int]:
        """A special token's text as plain text; no proper part of one is a special token."""
        return self.encode(token[:1]) + self.encode(token[1:])


@dataclass(frozen=True)
class MediaSpan:
    """Rows of one modality of one media item and where they stand in the prompt.

    ``offsets``: (first position, count) per run; ``rows`` [sum of counts, hidden], in order;
    ``identity``: 32 bytes that name the rows' content.
    """

    modality: Modality
    offsets: tuple[tuple[int, int], ...]
    rows: torch.Tensor | SharedRows
    identity: bytes


@dataclass
class ChatPrompt:
    """One request's messages, made safe for the template, and its prompt once rendered."""

    vocabulary: Vocabulary
    embeddings: Sequence[Embedding]
    rows: Sequence[torch.Tensor | LeasedRows]
    spans: list[MediaSpan] = field(default_factory=list)
    _nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    _literals: list[str] = field(default_factory=list)

    def guard(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request body with markers for media parts and special-token look-alikes.

        Raises ValueError when a media part names no embedding or one is never named, or when
        an embedding's rows do not match its layout.
        """
        for embedding, rows in zip(self.embeddings, self.rows, strict=True):
            if len(rows) != embedding.n_rows:
                raise ValueError(
                    f"a {embedding.modality} came with {len(rows)} embedding rows "
                    f"for {embedding.n_rows} positions"
                )
        used: list[int] = []
        guarded = dict(body)
        guarded["messages"] = [self._guard_message(m, used) for m in body.get("messages") or []]
        if sorted(used) != list(range(len(self.embeddings))):
            raise ValueError(
                f"the messages name media {sorted(used)}, {len(self.embeddings)} were given"
            )
        if body.get("tools"):
            guarded["tools"] = self._guard_strings(body["tools"], self.vocabulary.added)
        return guarded

    def _guard_message(self, message: Any, used: list[int]) -> Any:
        if not isinstance(message, dict):
            return message
        # An assistant turn may hold think and tool tags; everyone else's are text.
        assistant = message.get("role") == "assistant"
        tokens = self.vocabulary.control if assistant else self.vocabulary.added
        guarded = {
            key: value if key == "role" else self._guard_strings(value, tokens)
            for key, value in message.items()
            if key != "content"
        }
        content = message.get("content")
        if isinstance(content, list):
            guarded["content"] = [
                self._guard_part(part, tokens, used, first=i == 0) for i, part in enumerate(content)
            ]
        elif "content" in message:
            guarded["content"] = self._guard_strings(content, tokens)
        return guarded

    def _guard_part(self, part: Any, tokens: frozenset[str], used: list[int], first: bool) -> Any:
        if not isinstance(part, dict):
            return part
        if part.get("type") == "media":
            used.append(part["index"])
            return {"type": "text", "text": self._marker("M", part["index"])}
        guarded = self._guard_strings(part, tokens)
        if isinstance(guarded.get("text"), str) and not first:
            # Two parts must not form a special token where the template joins them.
            guarded = {**guarded, "text": self._marker("B", 0) + guarded["text"]}
        return guarded

    def _guard_strings(self, value: Any, tokens: frozenset[str]) -> Any:
        if isinstance(value, str):
            return _pattern(tokens).sub(lambda m: self._literal(m.group()), value)
        if isinstance(value, list):
            return [self._guard_strings(v, tokens) for v in value]
        if isinstance(value, dict):
            return {
                self._guard_strings(k, tokens): self._guard_strings(v, tokens)
                for k, v in value.items()
            }
        return value

    def _literal(self, token: str) -> str:
        self._literals.append(token)
        return self._marker("T", len(self._literals) - 1)

    def _marker(self, kind: str, index: int) -> str:
        return f"@{self._nonce}{kind}{index}@"

    def encode(self, rendered: str) -> list[int]:
        """Token ids of the rendered template; fills ``spans``."""
        self.spans = []
        return self.encode_more(rendered)

    def encode_more(self, rendered: str) -> list[int]:
        """Token ids of text that follows the rendered template and holds no media."""
        ids: list[int] = []
        for kind, text in self._pieces(rendered):
            if kind == "text":
                ids += self.vocabulary.encode(text)
            elif kind == "T":
                ids += self.vocabulary.encode_literally(self._literals[int(text)])
            elif kind == "M":
                self._expand(int(text), ids)
        return ids

    def _pieces(self, rendered: str) -> Iterator[tuple[str, str]]:
        at = 0
        for match in re.finditer(f"@{self._nonce}([TMB])(\\d+)@", rendered):
            yield "text", rendered[at : match.start()]
            yield match.group(1), match.group(2)
            at = match.end()
        yield "text", rendered[at:]

    def _expand(self, index: int, ids: list[int]) -> None:
        embedding, rows = self.embeddings[index], self.rows[index]
        offsets: dict[Modality, list[tuple[int, int]]] = {}
        for segment in embedding.layout:
            if isinstance(segment, Special):
                ids.append(self.vocabulary.tokenizer.convert_tokens_to_ids(segment.token))
            elif isinstance(segment, Text):
                ids += self.vocabulary.encode(segment.text)
            elif segment.count:
                offsets.setdefault(segment.modality, []).append((len(ids), segment.count))
                ids += [self.vocabulary.pads[segment.modality]] * segment.count
        for modality, (start, count) in modality_rows(embedding.layout).items():
            self.spans.append(
                MediaSpan(
                    modality,
                    tuple(offsets[modality]),
                    pick(rows, start, count),
                    _identity(embedding, modality),
                )
            )


def vocabulary_of(tokenizer: Any, config: Any) -> Vocabulary:
    """Read special tokens off a Hugging Face tokenizer and pad ids off the model config."""
    added = tokenizer.added_tokens_decoder.values()
    return Vocabulary(
        tokenizer,
        added=frozenset(str(token) for token in added),
        control=frozenset(str(token) for token in added if token.special),
        pads={
            "image": config.image_token_id,
            "video": config.video_token_id,
            "audio": config.audio_token_id,
        },
    )


def _pattern(tokens: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(t) for t in sorted(tokens, key=len, reverse=True)))


def _identity(embedding: Embedding, modality: Modality) -> bytes:
    """32 bytes for the rows of one modality of an item (a clip's sound is not its picture)."""
    return hashlib.blake2b(
        bytes.fromhex(embedding.digest) + modality.encode(), digest_size=32
    ).digest()
