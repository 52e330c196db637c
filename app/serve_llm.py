"""The language model as the pipeline sees it, over one deployment or one for each length bucket."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.stages import StageDied
from encoders.embedding import Embedding
from llm.buckets import BucketPolicy, BucketState
from llm.reply import ReplyHead
from llm.router.blocks import BYTES_PER_TOKEN, Media, chat_blocks, estimate
from llm.router.prompt import Prompt, Route
from llm.router.view import RouterView
from llm.router.views import find_view

# A chat with more messages or more text is hashed in a thread: it takes milliseconds.
_INLINE_BYTES = 1 << 18


class Replicas(Protocol):
    """One deployment (`app.serve_stages.ServeLlm`)."""

    def chat(
        self, body: Mapping[str, Any], embeddings: Sequence[Embedding], route: Route | None = None
    ) -> AsyncGenerator[ReplyHead | bytes, None]: ...

    async def models(self) -> dict[str, Any]: ...

    async def ready(self) -> bool: ...

    async def stats(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LengthClass:
    """A deployment, and the name of its router's view in this process."""

    replicas: Replicas
    view: str

    def find(self) -> RouterView | None:
        return find_view(self.view)


class RoutedLlm:
    """`LlmStage` that names each chat's prefix, for the router, and chooses its length bucket.

    `classes`: a deployment for each class of `buckets`, shortest first, or a single one.
    `may_sleep`: whether they may have no replicas when nobody asks; a chat then wakes one.
    """

    def __init__(
        self,
        classes: Sequence[LengthClass],
        buckets: BucketPolicy | None,
        block_bytes: int,
        may_sleep: bool = False,
    ) -> None:
        if len(classes) != (len(buckets.bounds) if buckets is not None else 1):
            raise ValueError(f"{len(classes)} deployments do not fit the length buckets")
        self._classes = list(classes)
        self._buckets = buckets
        self._block_bytes = block_bytes
        self._may_sleep = may_sleep
        self._served: set[str] = set()

    async def chat(
        self, body: Mapping[str, Any], embeddings: Sequence[Embedding]
    ) -> AsyncGenerator[ReplyHead | bytes, None]:
        """First the head of the HTTP reply, then its body in pieces.

        Raises StageDied when the only replicas are gone: a new one takes longer than a client
        should wait without a word.
        """
        prompt = await self._prompt(body, embeddings)
        chosen = self._choose(prompt)
        self._check_alive(chosen)
        route = Route(uuid.uuid4().hex, prompt)
        stream = chosen.replicas.chat(body, embeddings, route)
        # Rows must not be held for as long as the answer takes.
        del body, embeddings, prompt
        prefilling = True
        try:
            async for item in stream:
                if prefilling and isinstance(item, bytes):
                    # The first token: the prompt is no load any more.
                    prefilling = False
                    self._prefilled(chosen, route)
                yield item
        finally:
            await stream.aclose()
            if prefilling:
                self._prefilled(chosen, route)

    async def models(self) -> dict[str, Any]:
        """`id` and `max_model_len` of the model."""
        return await self._classes[-1].replicas.models()

    async def ready(self) -> bool:
        """Whether every class answers that it is."""
        return all(await asyncio.gather(*(each.replicas.ready() for each in self._classes)))

    async def stats(self) -> dict[str, Any]:
        """Of one replica of the class for the shortest work."""
        return await self._classes[0].replicas.stats()

    async def _prompt(self, body: Mapping[str, Any], embeddings: Sequence[Embedding]) -> Prompt:
        media = [Media(embedding.digest, embedding.n_rows) for embedding in embeddings]
        view = self._classes[0].find()
        ratio = view.bytes_per_token if view is not None else BYTES_PER_TOKEN

        def make() -> Prompt:
            return estimate(list(chat_blocks(body, media, self._block_bytes)), ratio)

        if _text_bytes(body) <= _INLINE_BYTES:
            return make()
        return await asyncio.to_thread(make)

    def _choose(self, prompt: Prompt) -> LengthClass:
        if self._buckets is None:
            return self._classes[0]
        uncached, states = [], []
        for each in self._classes:
            view = each.find()
            # No router has started for it yet: it is taken to be idle.
            tokens, state = (
                view.state(prompt) if view is not None else (prompt.tokens, BucketState(1, 0.0))
            )
            uncached.append(tokens)
            states.append(state)
        index = self._buckets.choose(uncached, states)
        # Without replicas anywhere those of its own class are the ones to wait for.
        return self._classes[self._buckets.classify(min(uncached)) if index is None else index]

    def _check_alive(self, chosen: LengthClass) -> None:
        view = chosen.find()
        if view is None or self._may_sleep:
            return
        if view.loads():
            self._served.add(chosen.view)
        elif chosen.view in self._served:
            raise StageDied("language model", "its last replica is gone, a new one is starting")

    def _prefilled(self, chosen: LengthClass, route: Route) -> None:
        view = chosen.find()
        if view is not None:
            view.prefilled(route.id)


def _text_bytes(body: Mapping[str, Any]) -> int:
    """Roughly; exact enough to tell large chats."""
    messages = body.get("messages")
    total = 0
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list) else [content]
        for part in parts:
            text = part.get("text") if isinstance(part, Mapping) else part
            total += 64 + (len(text) if isinstance(text, str) else 0)
    return total
