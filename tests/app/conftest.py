"""What tests of the application share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.app.raw_server import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    listener = await asyncio.start_server(found.handle, "127.0.0.1", 0)
    found.port = listener.sockets[0].getsockname()[1]
    yield found
    listener.close()
