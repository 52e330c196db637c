"""The language-model replica: one SGLang engine behind OpenAI's chat semantics."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from encoders.embedding import Embedding
from encoders.store import RowsReader
from llm.arguments import engine_arguments, pool_choice
from llm.disaggregation.rooms import Handoff
from llm.reply import ReplyHead
from llm.request_ids import forget, root_of
from llm.router.prompt import Route
from llm.rows import opened
from llm.tiers import tier_stats

logger = logging.getLogger(__name__)


class LLMReplica:
    """An engine and its chat handler; constructed in the replica's event loop thread.

    ``settings``: the ``llm`` section of the configuration as plain data, plus ``model_path``,
    ``served_name`` and ``store`` (StoreOptions, or None: rows then come by value alone).
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        from llm import engine

        began = time.monotonic()
        engine.prepare(settings)
        from llm.chat import OmniServingChat
        from llm.prompt import vocabulary_of
        from llm.router.replica import PrefixReporter

        imported = time.monotonic()
        self._settings = settings
        self._rows = RowsReader(settings.get("store"))
        self._pools = pool_choice(settings)
        logger.info(self._pools.sentence())
        self._engine = engine.start(engine_arguments(settings))
        self._startup = {"imports": imported - began, "engine": time.monotonic() - imported}
        manager = self._engine.tokenizer_manager
        self._serving = OmniServingChat(manager, self._engine.template_manager)
        self._vocabulary = vocabulary_of(manager.tokenizer, manager.model_config.hf_config)
        router = settings["router"]
        self._prefixes = PrefixReporter(
            manager,
            lambda text: len(self._vocabulary.encode(text)),
            router["block_bytes"] if router["policy"] == "kv_affinity" else None,
            settings["page_size"],
        )
        self._warm = not settings["warmup"]
        self._warming = asyncio.Lock()

    async def chat(
        self,
        body: dict[str, Any],
        embeddings: Sequence[Embedding] = (),
        route: Route | None = None,
        handoff: Handoff | None = None,
    ) -> AsyncGenerator[ReplyHead | bytes, None]:
        """Answer one OpenAI chat request.

        ``body``: the request, media parts replaced by ``{"type": "media", "index": k}``;
        ``embeddings[k]`` has the rows or refers to them. Yields a ReplyHead, then the HTTP body in
        pieces: SSE events or one JSON document. Leaving early aborts the request in the engine.
        Raises RowsLost before anything else when rows are gone: they must be encoded again.
        ``route`` is for the router alone; ``handoff``: where the KV goes, or comes from.
        """
        from llm.chat_reply import reply

        leases = await self._rows.open_all(embeddings)
        rid = uuid.uuid4().hex
        try:
            rows = [opened(lease) for lease in leases]
            follow = self._prefixes.follow(rid, body, embeddings)
            more = handoff.fields() if handoff is not None else {}
            async for piece in reply(
                self._serving, self._vocabulary, body, embeddings, rows, rid, follow.prompt, more
            ):
                follow.feed(piece)
                yield piece
            follow.done()
        finally:
            self._abort(rid)
            self._rows.close(leases)

    def _abort(self, root: str) -> None:
        """End whatever of the request still runs; nothing does after a complete answer."""
        manager = self._engine.tokenizer_manager
        for rid in [r for r in manager.rid_to_state if root_of(r) == root]:
            manager.abort_request(rid)
        forget(root)

    async def ready(self) -> bool:
        """True once the engine generates; the first call warms it up."""
        async with self._warming:
            if not self._warm:
                began = time.monotonic()
                await self._warm_up()
                self._startup["warm_up"] = time.monotonic() - began
                self._warm = True
        return self._alive()

    async def check_health(self) -> None:
        """Raises RuntimeError when an engine process has died (Serve then replaces us).

        Serve asks once before it sends requests to a new replica, which is when it warms up.
        """
        if not await self.ready():
            raise RuntimeError("an engine process has died")

    async def stats(self) -> dict[str, Any]:
        """Requests in the engine, its KV pools and tiers, leases on rows and their store.

        `pids`: the engine's processes, schedulers first.
        """
        manager = self._engine.tokenizer_manager
        return {
            "pids": self._engine.get_all_child_pids(),
            "requests": len(manager.rid_to_state),
            "kv_pools": self._pools.pools.report() if self._pools.pools else {},
            "tiers": await tier_stats(manager),
            **self._rows.report(),
        }

    async def record_routing_stats(self) -> dict[str, Any]:
        """What the routers know of this replica: its load and the prefixes that it holds."""
        return await self._prefixes.report()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What an autoscaling policy by uncached tokens decides by."""
        return await self._prefixes.autoscaling_stats()

    def startup(self) -> dict[str, float]:
        """Seconds of each phase of this replica's start."""
        return dict(self._startup)

    def models(self) -> dict[str, Any]:
        """What ``GET /v1/models`` says of this model."""
        return {
            "id": self._settings["served_name"],
            "max_model_len": self._engine.tokenizer_manager.context_len,
        }

    async def _warm_up(self) -> None:
        """Run prefill, decode and verify in one and several rows, streamed and not."""

        async def ask(stream: bool, words: int) -> None:
            body = {
                "model": self._settings["served_name"],
                "messages": [{"role": "user", "content": "warm " * words}],
                "max_tokens": 8,
                "stream": stream,
            }
            async for _ in self.chat(body):
                pass

        await ask(False, 4)
        await asyncio.gather(ask(True, 8), ask(False, 80))

    def _alive(self) -> bool:
        import psutil

        return all(
            psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            for pid in self._engine.get_all_child_pids()
        )

    def __del__(self) -> None:
        """Serve calls this when it retires the replica; the engine's processes end with us."""
        engine = self.__dict__.pop("_engine", None)
        if engine is not None and not sys.is_finalizing():
            engine.shutdown()
