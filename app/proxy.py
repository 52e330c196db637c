"""Request bodies in Serve's own HTTP proxy, which stands before the gateway: bounded, and in one.

The proxy takes a body as fast as the client sends it and holds what the gateway has not fetched
yet. The gateway refuses a body above the limit; this keeps the proxy from collecting the rest: it
stops reading, so that the client's connection fills up and waits. The server reads 64 KiB at a
time, and each piece would be a call of the gateway's to the proxy: pieces are joined. Serve calls
`middlewares` when RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it (`app.local_ray` sets it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.middleware import Middleware

from app.settings import config_path, load_settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Any, Receive, Any], Awaitable[None]]

# Pieces of a body are joined to more than this, or to its end.
_JOINED = 1 << 20


def middlewares() -> list[Middleware]:
    """What Serve's proxy wraps around its requests."""
    limit = load_settings(config_path()).gateway.max_body_bytes
    # The gateway throws away up to twice its limit before it answers; see `app.body`.
    return [Middleware(BodyBound, max_bytes=2 * limit)]


class BodyBound:
    """ASGI middleware: no more than `max_bytes` and a joined piece of any body is read."""

    def __init__(self, app: App, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        size = 0

        async def bounded() -> Message:
            nonlocal size
            if size > self._max_bytes:
                await asyncio.Event().wait()  # until the request ends and cancels this
            message = await _joined(receive, min(_JOINED, self._max_bytes - size))
            size += len(message.get("body", b""))
            return message

        await self._app(scope, bounded if scope["type"] == "http" else receive, send)


async def _joined(receive: Receive, enough: int) -> Message:
    """The next message; a piece of a body together with those behind it, to more than `enough`."""
    message = await receive()
    pieces = [message.get("body", b"")]
    size = len(pieces[0])
    while message.get("more_body", False) and size <= enough:
        message = await receive()
        if message["type"] != "http.request":  # the client left in the middle
            return message
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
    return {**message, "body": b"".join(pieces)} if len(pieces) > 1 else message
