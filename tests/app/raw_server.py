"""A server that answers with raw HTTP, for tests of downloads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Write = Callable[[bytes], Awaitable[None]]


@dataclass
class Server:
    """Answers by path with raw HTTP; remembers the requests it saw."""

    port: int = 0
    answers: dict[str, Callable[[Write], Awaitable[None]] | bytes] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            answer = self.answers.get(head.split()[1], b"HTTP/1.1 404 Not Found\r\n\r\n")
            if isinstance(answer, bytes):
                await write(answer)
            else:
                await answer(write)
        writer.close()


def ok(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
