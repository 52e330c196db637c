"""The assistant message of a reply, put together from its HTTP body as the client will echo it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


class Echo:
    """Reads a reply piece by piece: SSE events of a stream, or one JSON document."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._names: dict[int, str] = {}
        self._seen = False

    def feed(self, piece: bytes) -> None:
        """A piece of the body; one that cannot be read is skipped."""
        for line in piece.split(b"\n") if piece.startswith(b"data:") else [piece]:
            text = line.removeprefix(b"data:").strip()
            if text.startswith(b"{"):
                try:
                    self._event(orjson.loads(text))
                except (orjson.JSONDecodeError, AttributeError, TypeError):
                    continue

    def _event(self, event: Mapping[str, Any]) -> None:
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            delta = choice.get("delta") or choice.get("message") or {}
            self._seen = True
            self._content.append(delta.get("content") or "")
            self._reasoning.append(delta.get("reasoning_content") or "")
            for order, call in enumerate(delta.get("tool_calls") or ()):
                index = call.get("index")
                index = order if index is None else index
                function = call.get("function") or {}
                if function.get("name"):
                    self._names[index] = function["name"]
                self._calls.setdefault(index, []).append(function.get("arguments") or "")

    def message(self) -> dict[str, Any] | None:
        """The message of the first choice; None when there was none."""
        if not self._seen:
            return None
        calls = [
            {"function": {"name": self._names.get(index), "arguments": "".join(pieces)}}
            for index, pieces in sorted(self._calls.items())
        ]
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if any(self._reasoning):
            message["reasoning_content"] = "".join(self._reasoning)
        return message | ({"tool_calls": calls} if calls else {})
