"""From a structured chat to block digests, without a tokenizer.

The chat is read as one stream: the first system message, the tools, the other messages; of each
message its role and fields, its text, its media. Text is cut into blocks of `block_bytes` bytes
and at every end of a message, so that turns of a conversation, which end where messages end, fall
on block ends. A media part is a block of its own: its content digest and its row count. Each
digest covers its predecessor, so equal digests mean equal streams from the start. They choose a
replica and nothing else (KV is found by tokens and full media digests), so a fast 64-bit hash does.

Tokens are estimated from bytes; the replica, which tokenises anyway, measures (`ledger.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from xxhash import xxh3_64_intdigest as _hash

from llm.router.prompt import Prompt

BLOCK_BYTES = 1024
BYTES_PER_TOKEN = 4.0
_SEED = 2
# Added to the seed of a block that ends a message, and of a media item.
_END, _MEDIA = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
_MASK = (1 << 64) - 1
# Rendered by no template, or different in an echo of the same message.
_SKIPPED = frozenset(
    {"role", "content", "reasoning_content", "tool_calls", "refusal", "annotations", "audio"}
)


@dataclass(frozen=True, slots=True)
class Media:
    """A media item of the chat: its content digest and its embedding rows."""

    digest: str
    rows: int


class Block(NamedTuple):
    """A block: its digest, its text or (for media) None, its media rows, whether a message ends."""

    digest: int
    text: bytes | None
    rows: int
    closes: bool


def chat_blocks(
    body: Mapping[str, Any], media: Sequence[Media], block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """Blocks of a chat whose media parts are `{"type": "media", "index": k}`.

    What is malformed is taken as it is: the engine's own checks refuse it later.
    """
    kwargs = body.get("chat_template_kwargs")
    parent = _hash(_json(kwargs) if kwargs else b"", _SEED)
    messages = body.get("messages")
    rest = list(messages) if isinstance(messages, list) else []
    if rest and isinstance(rest[0], dict) and rest[0].get("role") == "system":
        parent = yield from _message(rest.pop(0), media, parent, block_bytes)
    if body.get("tools"):
        parent = yield from _cut(_json(body["tools"]), parent, block_bytes, True)
    for message in rest:
        parent = yield from _message(message, media, parent, block_bytes)


def reply_blocks(
    parent: int, message: Mapping[str, Any], block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """Blocks of the assistant message that answered a chat whose last digest is `parent`."""
    yield from _message(message, (), parent, block_bytes)


def estimate(blocks: Sequence[Block], bytes_per_token: float = BYTES_PER_TOKEN) -> Prompt:
    """The prompt with token counts estimated from bytes."""
    ends, total = [], 0.0
    for block in blocks:
        total += block.rows if block.text is None else len(block.text) / bytes_per_token
        ends.append(int(total))
    return Prompt([block.digest for block in blocks], ends, int(total) + 1)


def _message(message: Any, media: Sequence[Media], parent: int, size: int) -> Any:
    """Yields the blocks of a message; returns the last digest."""
    if not isinstance(message, Mapping):
        return (yield from _cut(_json(message), parent, size, True))
    fields = {k: v for k, v in message.items() if k not in _SKIPPED and v not in (None, "", [])}
    reasoning, calls = message.get("reasoning_content"), _calls(message.get("tool_calls"))
    text = reasoning.encode("utf-8", "replace") if isinstance(reasoning, str) else b""
    head = _json([message.get("role"), fields, len(text), bool(calls)])
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            text += part.encode("utf-8", "replace")
        elif isinstance(part, Mapping) and part.get("type") == "media":
            parent = yield from _cut(text, parent, size, False, head)
            text, head = b"", b""
            item = media[part["index"]]
            parent = _hash(item.digest.encode(), (parent + _MEDIA) & _MASK)
            yield Block(parent, None, item.rows, False)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            text += part["text"].encode("utf-8", "replace")
        elif part is not None:
            text += _json(part)
    return (yield from _cut(text + (_json(calls) if calls else b""), parent, size, True, head))


def _calls(calls: Any) -> Any:
    """Names and arguments of tool calls: their ids are rendered by no template."""
    if not isinstance(calls, list):
        return calls or None
    found = [call.get("function") if isinstance(call, Mapping) else call for call in calls]
    return [
        [f.get("name"), f.get("arguments")] if isinstance(f, Mapping) else f for f in found
    ] or None


def _cut(text: bytes, parent: int, size: int, closes: bool, head: bytes = b"") -> Any:
    """Yields blocks of `size` bytes and what is left; returns the last digest.

    `head` belongs to the first block's digest but is no text of the prompt.
    """
    if not text and not head and not closes:
        return parent
    if head:
        parent = _hash(head, parent)
    whole = len(text) if not closes else max(0, len(text) - 1) // size * size
    for start in range(0, whole, size):
        piece = text[start : start + size]
        parent = _hash(piece, parent)
        yield Block(parent, piece, 0, False)
    if closes:
        piece = text[whole:]
        parent = _hash(piece, (parent + _END) & _MASK)
        yield Block(parent, piece, 0, True)
    elif not text:
        yield Block(parent, b"", 0, False)
    return parent


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        # Integers beyond 64 bits, lone surrogates: rare, and never worth a failure here.
        return repr(value).encode("utf-8", "backslashreplace")
