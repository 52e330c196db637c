"""Reading a request body within a byte limit, and parsing it as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from app.errors import ApiError, bad_request, megabytes, too_large

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
# JSON longer than this is parsed in a thread.
_PARSE_IN_PLACE = 256 * 1024
_MAX_DEPTH = 128


class ClientGone(Exception):
    """The client left before it had sent its request."""


async def read_body(
    headers: list[tuple[bytes, bytes]], receive: Receive, max_bytes: int, timeout_s: float
) -> bytes:
    """The whole body. Bytes are counted as they come: a body without a length is cut off too.

    Raises `ApiError` 413 or 408, or `ClientGone`.
    """
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > max_bytes:
            raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise ApiError(
            408, f"the request body did not arrive within {timeout_s:g} seconds", code="timeout"
        ) from None


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


def _too_large(max_bytes: int) -> ApiError:
    return too_large(
        f"the request body is larger than the limit of {megabytes(max_bytes)}",
        code="request_too_large",
    )
