"""What Ray's exceptions mean to the pipeline, and how calls travel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest
from ray import exceptions as ray_errors
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RequestCancelledError,
)

import encoders.errors
import video.errors
from app.serve_stages import ServeImages, ServeLlm, translate
from app.stages import BadMedia, StageDied, StageFailed, StageFull
from encoders.embedding import Embedding, RowsArray, image_layout
from encoders.errors import MediaError
from llm.reply import ReplyHead


def wrapped(cause: Exception) -> Exception:
    """An exception as Ray raises it for a replica's: of both types at once."""
    error: Exception = ray_errors.RayTaskError("method", "traceback", cause).as_instanceof_cause()
    return error


def twice(cause: Exception) -> Exception:
    """An exception that a replica got from another replica and passed on."""
    inner = ray_errors.RayTaskError("method", "traceback", cause)
    return ray_errors.RayTaskError("method", "traceback", inner)


@pytest.mark.parametrize("wrap", [lambda error: error, wrapped, twice])
@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (MediaError("too dark"), BadMedia),
        (video.errors.MediaError("too dark"), BadMedia),
        (BackPressureError(3, 2), StageFull),
        (video.errors.DecoderBusy("full"), StageFull),
        (encoders.errors.EncoderBusy("waited 300 s"), StageFull),
        (video.errors.DecoderCrashed("gone"), StageDied),
        (RuntimeError("boom"), StageFailed),
        (ValueError("boom"), StageFailed),
    ],
)
def test_exceptions_of_stages(wrap: Any, cause: Exception, kind: type[Exception]) -> None:
    found = translate(wrap(cause), "image encoder")
    assert type(found) is kind
    if isinstance(found, BadMedia):
        assert found.reason == "too dark"


@pytest.mark.parametrize(
    "failure",
    [
        ray_errors.ActorDiedError(),
        ray_errors.ActorUnavailableError("gone", None),
        ray_errors.WorkerCrashedError(),
        ray_errors.TaskCancelledError(),
        RequestCancelledError("id"),
    ],
)
def test_deaths_of_replicas(failure: Exception) -> None:
    found = translate(failure, "language model")
    assert isinstance(found, StageDied)
    assert found.stage == "language model"


class Response:
    """A Serve response that a test completes."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.cancelled = False

    def __await__(self) -> Any:
        return self.work.__await__()

    def __aiter__(self) -> Any:
        return self.work.__aiter__()

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """A deployment handle that remembers the options of its calls."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.responses: list[Response] = []

    def options(self, **options: Any) -> Bound:
        return Bound(self, options)


class Bound:
    def __init__(self, handle: Handle, options: dict[str, Any], method: str = "") -> None:
        self._handle, self._options, self._method = handle, options, method

    def options(self, **options: Any) -> Bound:
        return Bound(self._handle, {**self._options, **options})

    def __getattr__(self, name: str) -> Bound:
        return Bound(self._handle, self._options, name)

    def remote(self, *arguments: Any) -> Response:
        self._handle.calls.append((self._method, self._options))
        self._handle.responses.append(Response(self._handle.make()))
        return self._handle.responses[-1]


async def answer() -> str:
    return "rows"


@pytest.mark.parametrize(("size", "by_reference"), [(1000, False), (2**20 + 1, True)])
async def test_large_arguments_go_through_the_object_store(size: int, by_reference: bool) -> None:
    handle = Handle(answer)
    stage = ServeImages(handle, "image encoder")  # type: ignore[arg-type]
    assert await stage.encode_image(bytes(size), "digest", {}) == "rows"
    assert handle.calls == [("encode_image", {"_by_reference": by_reference})]


async def test_cancelling_a_call_cancels_it_in_the_replica() -> None:
    async def never() -> None:
        await asyncio.sleep(30)

    handle = Handle(never)
    stage = ServeImages(handle, "image encoder")  # type: ignore[arg-type]
    call = asyncio.create_task(stage.encode_image(b"", "digest", {}))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert handle.responses[0].cancelled


async def events() -> AsyncGenerator[ReplyHead | bytes, None]:
    yield ReplyHead(200, "text/event-stream")
    yield b"1"
    yield b"2"


def embedding(count: int) -> Embedding:
    rows = RowsArray(np.zeros((count, 1024), np.float32), "float32")
    return Embedding("image", "0" * 64, image_layout(count), rows)


@pytest.mark.parametrize(("count", "by_reference"), [(0, False), (8, False), (300, True)])
async def test_replies_are_streamed(count: int, by_reference: bool) -> None:
    handle = Handle(events)
    stage = ServeLlm(handle, "language model")  # type: ignore[arg-type]
    items = [embedding(count)] if count else []
    assert [item async for item in stage.chat({}, items)][1:] == [b"1", b"2"]
    assert handle.calls == [("chat", {"_by_reference": by_reference, "stream": True})]
    assert not handle.responses[0].cancelled


async def test_leaving_a_stream_cancels_it_in_the_replica() -> None:
    handle = Handle(events)
    stream = ServeLlm(handle, "language model").chat({}, [])  # type: ignore[arg-type]
    await anext(stream)
    await stream.aclose()
    assert handle.responses[0].cancelled


async def test_a_stream_that_breaks_is_translated() -> None:
    async def breaks() -> AsyncGenerator[bytes, None]:
        yield b"1"
        raise ray_errors.ActorDiedError()

    handle = Handle(breaks)
    stream = ServeLlm(handle, "language model").chat({}, [])  # type: ignore[arg-type]
    await anext(stream)
    with pytest.raises(StageDied):
        await anext(stream)


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_call_that_never_reached_a_replica_fails_as_one_that_may_be_repeated(
    leaves: bool,
) -> None:
    gone = DeploymentUnavailableError(DeploymentID("LLM", "app"))

    async def unassigned() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(30 if leaves else 0.05)
        raise gone
        yield b""

    def raises() -> None:
        raise gone

    handle = Handle(unassigned)
    stream = ServeLlm(handle, "language model").chat({}, [])  # type: ignore[arg-type]
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    # As Ray: cancelling such a call raises its failure again.
    handle.responses[0].cancel = raises  # type: ignore[method-assign]
    if leaves:
        first.cancel()
    with pytest.raises(asyncio.CancelledError if leaves else StageDied):
        await first
