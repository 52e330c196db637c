"""The two kinds of replica of a disaggregated language model.

Chats come to a prefill replica, by prefix as ever; it asks its engine to compute and a decode
replica to answer, and passes the answer on. So the gateway and the router know nothing of the
pair, and whoever dies, the other side learns it from its end of the same call.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from encoders.embedding import Embedding
from llm.deployment import LLMReplica
from llm.disaggregation.pair import answer
from llm.disaggregation.rooms import Handoff, Rooms
from llm.reply import ReplyHead
from llm.router.prompt import Route

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle


class DecodeReplica(LLMReplica):
    """Answers requests whose KV a prefill replica computes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        # Its engine waits for a prefill engine's KV: it cannot warm up alone.
        super().__init__(settings | {"role": "decode", "warmup": False})


class PrefillReplica(LLMReplica):
    """Computes prompts and passes the answers of `decode` on."""

    def __init__(self, settings: dict[str, Any], decode: DeploymentHandle) -> None:
        import ray

        port = free_port()
        super().__init__(settings | {"role": "prefill", "warmup": False, "bootstrap_port": port})
        self._decode = decode.options(stream=True)
        timeout_s = settings["disaggregation"]["transfer_timeout_s"]
        self._rooms = Rooms(ray.util.get_node_ip_address(), port, timeout_s)

    async def chat(
        self,
        body: dict[str, Any],
        embeddings: Sequence[Embedding] = (),
        route: Route | None = None,
        handoff: Handoff | None = None,
    ) -> AsyncGenerator[ReplyHead | bytes, None]:
        """As `LLMReplica.chat`; raises `HandoverFailed` when the pair fails."""

        def prefill(handoff: Handoff) -> AsyncGenerator[ReplyHead | bytes, None]:
            return super(PrefillReplica, self).chat(body, embeddings, route, handoff)

        async def decode(handoff: Handoff) -> AsyncGenerator[ReplyHead | bytes, None]:
            stream = self._decode.chat.remote(body, list(embeddings), None, handoff)
            finished = False
            try:
                async for piece in stream:
                    yield piece
                finished = True
            finally:
                if not finished:
                    stream.cancel()

        pieces = answer(self._rooms, prefill, decode)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()


def free_port() -> int:
    """A port that nobody listens on now: several prefill replicas may share a node."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
