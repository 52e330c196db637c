"""Reading a request body within a byte limit, and parsing it as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from app.errors import ApiError, bad_request, megabytes, too_large

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
# JSON longer than this is parsed in a thread: 1 MiB of base64 text takes a third of a millisecond.
_PARSE_IN_PLACE = 1 << 20
_MAX_DEPTH = 128
_DISCARD_S = 5.0


class ClientGone(Exception):
    """The client left before it had sent its request."""


class RequestBody:
    """The body of one request: read within a limit, or thrown away.

    `complete` tells whether all of it has arrived; a connection whose request is not complete must
    not be used for another one.
    """

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._size = 0
        self.complete = False

    async def read(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """The whole body. Bytes are counted as they come, with or without a declared length.

        Raises `ApiError` 413 or 408, or `ClientGone`.
        """
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value) > self._max_bytes:
                raise self._too_large()
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self.complete:
                    chunks.append(await self._next())
                    if self._size > self._max_bytes:
                        raise self._too_large()
        except TimeoutError:
            raise ApiError(
                408,
                f"the request body did not arrive within {self._timeout_s:g} seconds",
                code="timeout",
            ) from None
        return b"".join(chunks)

    async def discard(self) -> None:
        """Throw the rest away, for some seconds and up to twice the limit in all.

        Most clients read no answer before they have sent their request: without this they would
        see a broken connection in place of the error.
        """
        try:
            async with asyncio.timeout(min(_DISCARD_S, self._timeout_s)):
                while not self.complete and self._size <= 2 * self._max_bytes:
                    await self._next()
        except TimeoutError:
            pass

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        self._size += len(chunk)
        return chunk

    def _too_large(self) -> ApiError:
        return too_large(
            f"the request body is larger than the limit of {megabytes(self._max_bytes)}",
            code="request_too_large",
        )


async def parse_json(data: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises `ApiError` 400."""
    try:
        if len(data) <= _PARSE_IN_PLACE:
            document = orjson.loads(data)
        else:
            document = await asyncio.to_thread(orjson.loads, data)
    except orjson.JSONDecodeError as failure:
        raise bad_request(
            f"the body is not valid JSON (line {failure.lineno}, column {failure.colno})",
            code="invalid_json",
        ) from None
    if not isinstance(document, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    if _too_deep(document):
        raise bad_request(
            f"the body is nested more than {_MAX_DEPTH} levels deep", code="invalid_json"
        )
    return document


def _too_deep(document: dict[str, Any]) -> bool:
    """Whether a value lies deeper than others (pickle, templates) can follow."""
    level: list[Any] = [document]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        if not inner:
            return False
        level = inner
    return True
