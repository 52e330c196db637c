"""The HTTP gateway: OpenAI's chat endpoint, the model list, health checks and statistics.

A plain ASGI application; it imports neither torch nor a decoder nor the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from typing import Any

import orjson

from app.body import ClientGone, Receive, RequestBody, parse_json
from app.errors import ApiError, overloaded, quoted
from app.pipeline import Pipeline
from app.reply import Reply
from app.settings.gateway import GatewaySettings

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[[Scope, RequestBody, Receive, Send], Awaitable[None]]

_JSON = "application/json"


class Gateway:
    """The ASGI application over a pipeline."""

    def __init__(self, pipeline: Pipeline, settings: GatewaySettings) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._chats = 0
        self._routes: dict[str, tuple[str, Handler]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/ready": ("GET", self._ready),
            "/stats": ("GET", self._stats),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        settings = self._settings
        body = RequestBody(receive, settings.max_body_bytes, settings.body_timeout_s)
        started = False

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._handler(scope)(scope, body, receive, tracked)
        except ClientGone:
            pass
        except Exception as failure:
            if not isinstance(failure, ApiError):
                logger.exception("unexpected failure of a request to %s", scope["path"])
            if started:  # the server cuts the connection, so that the client sees a broken reply
                raise
            await self._refuse(failure, body, send)

    async def _refuse(self, failure: Exception, body: RequestBody, send: Send) -> None:
        error = failure
        if not isinstance(error, ApiError):
            error = ApiError(500, "the gateway failed", code="internal_error")
        try:
            await body.discard()
        except ClientGone:
            return
        await send_error(send, error, self._settings.retry_after_s, close=not body.complete)

    def _handler(self, scope: Scope) -> Handler:
        path = scope["path"].rstrip("/")
        route = self._routes.get(path)
        if route is None and path.startswith("/v1/models/"):
            route = ("GET", self._model)
        if route is None:
            raise ApiError(404, f"there is nothing at {quoted(path)}", code="not_found")
        allowed, handler = route
        if scope["method"] not in (allowed, "HEAD" if allowed == "GET" else allowed):
            raise ApiError(405, f"{path[:64]} answers {allowed} only", code="method_not_allowed")
        return handler

    async def _chat(self, scope: Scope, body: RequestBody, receive: Receive, send: Send) -> None:
        settings = self._settings
        if self._chats >= settings.max_concurrent_requests:
            raise overloaded("the server is at its capacity")
        self._chats += 1
        try:
            chat = await parse_json(await body.read(scope["headers"]))
            await while_connected(self._answer(chat, send), receive)
        finally:
            self._chats -= 1

    async def _answer(self, chat: dict[str, Any], send: Send) -> None:
        reply = await self._pipeline.chat(chat)
        # The media in the request is not needed any more, however long the answer takes.
        chat.clear()
        await send_reply(send, reply)

    async def _models(self, scope: Scope, body: RequestBody, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"object": "list", "data": await self._pipeline.models()})

    async def _model(self, scope: Scope, body: RequestBody, receive: Receive, send: Send) -> None:
        name = scope["path"].removeprefix("/v1/models/")
        for model in await self._pipeline.models():
            if model["id"] == name:
                return await send_json(send, 200, model)
        raise ApiError(404, f"the model {quoted(name)} does not exist", code="model_not_found")

    async def _health(self, scope: Scope, body: RequestBody, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"status": "alive"})

    async def _stats(self, scope: Scope, body: RequestBody, receive: Receive, send: Send) -> None:
        stats = await self._pipeline.stats()
        stats["gateway"]["chats"] = self._chats
        await send_json(send, 200, stats)

    async def _ready(self, scope: Scope, body: RequestBody, receive: Receive, send: Send) -> None:
        stages = await self._pipeline.ready(self._settings.ready_timeout_s)
        missing = [name for name, answered in stages.items() if not answered]
        if missing:
            raise ApiError(
                503,
                f"not ready: {', '.join(missing)}",
                code="not_ready",
            )
        await send_json(send, 200, {"status": "ready", "stages": stages})


async def while_connected(work: Awaitable[None], receive: Receive) -> None:
    """Run `work`; cancel it, and everything that it waits for, when the client leaves."""
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return
        logger.info("a client left before its reply was complete")
    finally:
        for job in (task, left):
            job.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_reply(send: Send, reply: Reply) -> None:
    """Send a reply piece by piece and close it."""
    if isinstance(reply.body, bytes):
        await _send_whole(send, reply.status, reply.body, {}, reply.media_type)
        return
    async with aclosing(reply.body) as body:
        await _start(send, reply.status, reply.media_type, {})
        async for chunk in body:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_json(send: Send, status: int, document: Any) -> None:
    """Send a JSON document."""
    # A histogram's keys are numbers.
    await _send_whole(send, status, orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS), {})


async def send_error(
    send: Send, failure: ApiError, retry_after_s: float, close: bool = False
) -> None:
    """Send OpenAI's error object; `close` ends the connection after it."""
    headers = {**failure.headers(retry_after_s), **({"connection": "close"} if close else {})}
    await _send_whole(send, failure.status, failure.body(), headers)


async def _send_whole(
    send: Send, status: int, body: bytes, headers: Mapping[str, str], media_type: str = _JSON
) -> None:
    await _start(send, status, media_type, {"content-length": str(len(body)), **headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _start(send: Send, status: int, media_type: str, headers: Mapping[str, str]) -> None:
    lines = [(b"content-type", media_type.encode("latin-1"))]
    if media_type.startswith("text/event-stream"):
        lines.append((b"cache-control", b"no-cache"))
    lines += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
