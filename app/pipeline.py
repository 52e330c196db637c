"""One chat request from parsed body to reply: check, encode its media, ask the language model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from app.chat import ParsedChat, parse_chat
from app.errors import ApiError, bad_request, overloaded, quoted
from app.live import watched
from app.media import MediaEncoder
from app.progress import Progress
from app.reply import Reply, open_reply
from app.stages import BadMedia, RowsGone, Stage, StageDied, StageError, StageFull, Stages

logger = logging.getLogger(__name__)


class Pipeline:
    """Answers chats with the stages, within the limits of the settings."""

    def __init__(
        self,
        stages: Stages,
        media: MediaEncoder,
        *,
        served_name: str,
        max_items: int,
        request_timeout_s: float,
        progress_s: float = 1.0,
    ) -> None:
        self._stages = stages
        self._media = media
        self._served_name = served_name
        self._max_items = max_items
        self._request_timeout_s = request_timeout_s
        self._progress_s = progress_s
        self._created = int(time.time())
        self._asked: dict[str, asyncio.Future[bool]] = {}

    async def chat(self, body: Mapping[str, Any]) -> Reply:
        """The reply to an OpenAI chat request. Raises `ApiError`; its body must be closed."""
        deadline = asyncio.get_running_loop().time() + self._request_timeout_s
        self._check_model(body)
        chat = parse_chat(body, self._max_items)
        progress = Progress(self._media.board)
        reply = self._reply(chat, deadline, progress)
        if not body.get("stream") or all(item.modality != "video" for item in chat.items):
            return await reply
        return await watched(reply, progress, self._progress_s)

    async def _reply(self, chat: ParsedChat, deadline: float, progress: Progress) -> Reply:
        """Raises `ApiError`."""
        try:
            try:
                return await self._answer(chat, deadline, progress)
            except RowsGone as failure:
                logger.info("%s; encoding again", failure)
                return await self._answer(chat, deadline, progress, by_value=True)
        except StageError as failure:
            raise self._failed(failure) from failure
        except BadMedia as failure:
            raise bad_request(failure.reason, code="invalid_media") from None
        except TimeoutError:
            raise ApiError(504, "the request took longer than it may", code="timeout") from None

    async def _answer(
        self, chat: ParsedChat, deadline: float, progress: Progress, by_value: bool = False
    ) -> Reply:
        async with asyncio.timeout_at(deadline):
            embeddings = await self._media.encode(chat.items, by_value, progress)
        return await open_reply(lambda: self._stages.llm.chat(chat.body, embeddings), deadline)

    async def stats(self) -> dict[str, Any]:
        """Work in progress and counters: this process's and those of one replica of each stage
        that keeps any. A stage that does not answer is None.
        """
        stages = {
            "image encoder": self._stages.images,
            "audio encoder": self._stages.audio,
            "video decoder": self._stages.video,
            "language model": self._stages.llm,
        }
        answers = await asyncio.gather(*(_stats(stage) for stage in stages.values()))
        return {"gateway": self._media.report(), **dict(zip(stages, answers, strict=True))}

    async def models(self) -> list[dict[str, Any]]:
        """OpenAI's model objects: the one that is served. Raises `ApiError`."""
        try:
            known = await self._stages.llm.models()
        except StageError as failure:
            raise self._failed(failure) from failure
        return [{"object": "model", "created": self._created, "owned_by": "omniserve", **known}]

    async def ready(self, timeout_s: float) -> dict[str, bool]:
        """Which stages answer that they are ready, asked all at once.

        A stage that takes longer is not asked again while it works on its answer (it may be
        warming up).
        """
        named = self._stages.named()
        for name, stage in named.items():
            if name not in self._asked:
                self._asked[name] = asyncio.ensure_future(stage.ready())
        asked = dict(self._asked)
        await asyncio.wait(asked.values(), timeout=timeout_s)
        answers = {}
        for name, task in asked.items():
            if task.done():
                self._asked.pop(name, None)
            answers[name] = task.done() and not task.exception() and bool(task.result())
        return answers

    def _check_model(self, body: Mapping[str, Any]) -> None:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise bad_request("'model' must name the model to use", param="model")
        if model != self._served_name:
            raise ApiError(
                404,
                f"the model {quoted(model)} does not exist; this server has {self._served_name!r}",
                code="model_not_found",
                param="model",
            )

    def _failed(self, failure: StageError) -> ApiError:
        """A stage's fault as the client sees it: which stage, never its inner message."""
        logger.log(logging.INFO if isinstance(failure, StageFull) else logging.ERROR, "%s", failure)
        if isinstance(failure, StageFull):
            return overloaded(f"the {failure.stage} is at its capacity")
        if isinstance(failure, StageDied | RowsGone):
            return overloaded(f"the {failure.stage} is not available")
        return ApiError(500, f"the {failure.stage} failed", code="internal_error")


async def _stats(stage: Stage) -> dict[str, Any] | None:
    try:
        return await stage.stats()
    except StageError as failure:
        logger.warning("no statistics: %s", failure)
        return None
