"""The bytes of media items: from data URIs, base64 text or a download."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from app.chat import MediaItem
from app.data_uri import InlineError, decode_base64, decode_data_uri, is_data_uri
from app.errors import ApiError, bad_request, megabytes, too_large
from app.fetch import FetchError
from video.sequence import pack_sequence

# Text longer than this is decoded in a thread, so that the event loop stays free. Below it, the way
# to a thread and back takes longer than the decoding.
_IN_PLACE = 1 << 20

# Pictures of one clip that are fetched or decoded at once.
_AT_ONCE = 8


class Fetches(Protocol):
    """What is needed of `app.fetch.Fetcher`."""

    async def fetch(self, url: str, max_bytes: int) -> bytes: ...


async def read_item(item: MediaItem, fetcher: Fetches, max_bytes: int) -> bytes:
    """The encoded bytes of an item; pictures sent as a clip are packed. Raises `ApiError` that
    names its place.
    """
    try:
        if item.encoding == "base64":
            return await _decode(decode_base64, item.source, max_bytes)
        if not item.pictures:
            return await _read(item.source, fetcher, max_bytes)
        return pack_sequence(await _read_all(item.pictures, fetcher, max_bytes))
    except InlineError as failure:
        if failure.too_large:
            raise too_large(
                f"{item.where}: the {item.modality} is larger than the limit of "
                f"{megabytes(max_bytes)}",
                code="media_too_large",
                param=item.where,
            ) from None
        raise bad_request(
            f"{item.where}: {failure.reason}", code="invalid_media", param=item.where
        ) from None
    except FetchError as failure:
        codes = {413: "media_too_large", 503: "overloaded"}
        raise ApiError(
            failure.status,
            f"{item.where}: {failure.reason}",
            code=codes.get(failure.status, "invalid_media"),
            param=item.where,
        ) from None


async def _read(source: str, fetcher: Fetches, max_bytes: int) -> bytes:
    if is_data_uri(source):
        return await _decode(decode_data_uri, source, max_bytes)
    return await fetcher.fetch(source, max_bytes)


async def _read_all(sources: Sequence[str], fetcher: Fetches, max_bytes: int) -> list[bytes]:
    """All pictures, some at a time, within `max_bytes` together."""
    left = max_bytes
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(source: str) -> bytes:
        nonlocal left
        async with free:
            data = await _read(source, fetcher, left)
            left -= len(data)
            if left < 0:
                raise InlineError("the pictures are too large together", too_large=True)
            return data

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(source)) for source in sources]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _decode(decode: _Decoder, text: str, max_bytes: int) -> bytes:
    if len(text) <= _IN_PLACE:
        return decode(text, max_bytes)
    return await asyncio.to_thread(decode, text, max_bytes)


class _Decoder(Protocol):
    def __call__(self, text: str, max_bytes: int, /) -> bytes: ...
