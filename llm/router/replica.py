"""The replica's side of routing: notes what its engine computes and reports what it holds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

from encoders.embedding import Embedding
from llm.reply import ReplyHead
from llm.request_ids import root_of
from llm.router.blocks import Block, Media, chat_blocks, reply_blocks
from llm.router.echo import Echo
from llm.router.engine_probe import ASK, decode_states
from llm.router.ledger import Ledger, TokenCounts
from llm.router.probe import Held
from llm.router.report import Reporter

logger = logging.getLogger(__name__)


class PrefixReporter:
    """Follows the chats of one replica.

    `manager`: SGLang's tokenizer manager; `encode`: how many tokens a text has; `block_bytes`: as
    the router's, None = nobody asks, so nothing is followed.
    """

    def __init__(
        self, manager: Any, encode: Callable[[str], int], block_bytes: int | None, page_size: int
    ) -> None:
        self._manager = manager
        self._block_bytes = block_bytes
        self._counts = TokenCounts(encode)
        self._ledger = Ledger(tolerance=page_size + 3)
        self._lock = threading.Lock()
        self._reporter = Reporter()
        self._ratio: float | None = None
        self._mean_tokens = 0.0
        # Blocks are tokenised once more to know where they end: nobody waits for that.
        self._worker = ThreadPoolExecutor(1, "prefixes")

    def follow(self, rid: str, body: Mapping[str, Any], embeddings: Sequence[Embedding]) -> Follow:
        """A chat begins."""
        if self._block_bytes is None:
            return Follow(None, rid, [], False)
        media = [Media(embedding.digest, embedding.n_rows) for embedding in embeddings]
        blocks = list(chat_blocks(body, media, self._block_bytes))
        return Follow(self, rid, blocks, (body.get("n") or 1) == 1)

    def later(self, work: Callable[[], None]) -> None:
        """Do this in order, beside the event loop."""
        self._worker.submit(_logged, work)

    def note(self, rid: str, blocks: Sequence[Block], total: int) -> None:
        """A prompt of `total` tokens went to the engine."""
        ends = self._counts.ends(blocks, total)
        size = sum(len(block.text) for block in blocks if block.text is not None)
        tokens = total - sum(block.rows for block in blocks)
        with self._lock:
            self._ledger.note(rid, [block.digest for block in blocks], ends)
            self._mean_tokens += 0.1 * (total - self._mean_tokens)
            if size and tokens > 0:
                new = size / tokens
                self._ratio = new if self._ratio is None else 0.9 * self._ratio + 0.1 * new

    def extend(self, rid: str, message: Mapping[str, Any]) -> None:
        """The answer to a chat is complete."""
        with self._lock:
            last = self._ledger.last(rid)
        if last is None or self._block_bytes is None:
            return
        blocks = list(reply_blocks(last[0], message, self._block_bytes))
        ends = accumulate((self._counts.count(block) for block in blocks), initial=last[1])
        with self._lock:
            self._ledger.extend(rid, [block.digest for block in blocks], list(ends)[1:])

    async def report(self) -> dict[str, Any]:
        """What the engine holds now, as the routers read it (`report.py`)."""
        if self._block_bytes is None:
            return {}
        at = time.time()
        states: dict[str, Held] = {}
        load = 0.0
        for answer in await self._ask():
            states |= decode_states(answer)
            load += answer["load"]
        with self._lock:
            self._ledger.update(states, root_of)
            return self._reporter.make(at, load, self._ledger.blocks, self._ratio).pack()

    async def autoscaling_stats(self) -> dict[str, float]:
        """For an autoscaling policy: `pending_work`, uncached tokens queued and running;
        `mean_work`, tokens of a prompt; `busy`, share of the engine's running requests in use.
        """
        answers = await self._ask()
        return {
            "pending_work": sum(answer["load"] for answer in answers),
            "mean_work": self._mean_tokens,
            "busy": sum(answer["running"] for answer in answers) / max(1, len(answers)),
        }

    async def _ask(self) -> list[dict[str, Any]]:
        """The state of each of the engine's schedulers."""
        from sglang.srt.managers.io_struct import GetInternalStateReq

        self._manager.auto_create_handle_loop()
        answers = await self._manager.get_internal_state_communicator(GetInternalStateReq(rid=ASK))
        return [answer.internal_state for answer in answers]

    def check(self) -> None:
        """Raises AssertionError when the ledger is not consistent."""
        with self._lock:
            self._ledger.check()


def _logged(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        logger.exception("the prefix of a chat was not noted")


class Follow:
    """One chat: `prompt` when its tokens are known, `feed` with its reply, `done` at its end."""

    def __init__(
        self, reporter: PrefixReporter | None, rid: str, blocks: list[Block], single: bool
    ) -> None:
        self._reporter = reporter
        self._rid = rid
        self._blocks = blocks
        # Of several choices none is the conversation's continuation until the client says so.
        self._echo = Echo() if reporter is not None and single else None

    def prompt(self, tokens: int) -> None:
        """The prompt has this many tokens."""
        reporter = self._reporter
        if reporter is not None:
            reporter.later(lambda: reporter.note(self._rid, self._blocks, tokens))

    def feed(self, piece: ReplyHead | bytes) -> None:
        """A piece of the reply."""
        if self._echo is not None and isinstance(piece, bytes):
            self._echo.feed(piece)

    def done(self) -> None:
        """The reply is complete."""
        reporter, message = self._reporter, self._echo.message() if self._echo else None
        if reporter is not None and message is not None:
            reporter.later(lambda: reporter.extend(self._rid, message))
