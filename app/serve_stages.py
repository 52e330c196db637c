"""The stages as Ray Serve handles: calls, cancellation, and what Ray's exceptions mean here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import ray
from ray import exceptions as ray_errors
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    ReplicaUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle, DeploymentResponse, DeploymentResponseGenerator

import encoders.errors
import video.errors
from app.serve_llm import LengthClass, RoutedLlm
from app.stages import (
    BadMedia,
    Clip,
    RowsGone,
    Sound,
    StageDied,
    StageFailed,
    StageFull,
    Stages,
)
from encoders.embedding import Embedding, RowsArray
from encoders.store import RowsLost
from llm.buckets import BucketPolicy
from llm.reply import ReplyHead
from llm.router.prompt import Route
from llm.router.views import view_key
from video.long_clip import LongClip, Part, SoundPart

_MEDIA = (encoders.errors.MediaError, video.errors.MediaError)
_FULL = (BackPressureError, encoders.errors.EncoderBusy, video.errors.DecoderBusy)
_DIED = (
    ray_errors.ActorDiedError,
    ray_errors.ActorUnavailableError,
    ray_errors.WorkerCrashedError,
    ray_errors.NodeDiedError,
    ray_errors.ObjectLostError,
    ray_errors.OwnerDiedError,
    ray_errors.TaskCancelledError,
    ReplicaUnavailableError,
    DeploymentUnavailableError,
    RequestCancelledError,
    video.errors.DecoderCrashed,
)

# Arguments of more bytes than this go through the object store.
_BY_VALUE = 1 << 20


def translate(failure: Exception, stage: str) -> Exception:
    """A failure of a handle call as the pipeline knows it.

    An exception that a replica raised arrives wrapped in a `RayTaskError` with the original as its
    cause, possibly more than once.
    """
    cause: BaseException = failure
    while isinstance(cause, ray_errors.RayTaskError) and isinstance(cause.cause, BaseException):
        cause = cause.cause
    if isinstance(cause, _MEDIA):
        return BadMedia(cause.reason)
    if isinstance(cause, _FULL):
        return StageFull(stage, type(cause).__name__)
    if isinstance(cause, RowsLost):
        return RowsGone(stage, str(cause))
    if isinstance(cause, _DIED):
        return StageDied(stage, type(cause).__name__)
    return StageFailed(stage, f"{type(cause).__name__}: {cause}")


def cancel(call: DeploymentResponse[Any] | DeploymentResponseGenerator[Any]) -> None:
    """End a call. One that failed before it reached a replica would raise its failure here."""
    with suppress(Exception):
        call.cancel()


class _Calls:
    """Calls of one deployment.

    A call travels by value (gRPC) or by reference (Ray's object store): measured on two cores, by
    value costs 1.8 ms and 0.15 ms per streamed piece instead of 2.6 ms and 0.35 ms, but large
    arguments are then copied over a socket, where the object store maps them.
    """

    def __init__(self, handle: DeploymentHandle, stage: str) -> None:
        self._large = handle.options(_by_reference=True)
        self._small = handle.options(_by_reference=False)
        self._stage = stage

    async def _call(self, method: str, *args: Any, large: bool = False) -> Any:
        handle = self._large if large else self._small
        response = getattr(handle, method).remote(*args)
        try:
            return await response
        except asyncio.CancelledError:
            cancel(response)
            raise
        except Exception as failure:
            raise translate(failure, self._stage) from failure

    async def ready(self) -> bool:
        return bool(await self._call("ready"))

    async def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._call("stats")
        return found


class ServeImages(_Calls):
    """`ImageStage` over a handle."""

    async def encode_image(self, data: bytes, digest: str, options: Mapping[str, Any]) -> Embedding:
        large = len(data) > _BY_VALUE
        found: Embedding = await self._call(
            "encode_image", data, digest, dict(options), large=large
        )
        return found

    async def encode_frames(
        self, frames: Any, digest: str, options: Mapping[str, Any]
    ) -> tuple[RowsArray, tuple[int, int, int]]:
        rows, grid = await self._call("encode_frames", frames, digest, dict(options), large=True)
        return rows, grid

    async def encode_part(self, frames: Any, digest: str, options: Mapping[str, Any]) -> Embedding:
        part: Embedding = await self._call("encode_part", frames, digest, dict(options), large=True)
        return part

    async def find(self, digest: str) -> Embedding | None:
        found: Embedding | None = await self._call("find", digest)
        return found

    async def adopt(self, embedding: Embedding) -> None:
        # The digest on its own is what the router looks for.
        await self._call("adopt", embedding, embedding.digest)


class ServeAudio(_Calls):
    """`AudioStage` over a handle."""

    async def encode_samples(self, samples: Any, rate: int, digest: str) -> Embedding:
        found: Embedding = await self._call("encode_samples", samples, rate, digest, large=True)
        return found

    async def find(self, digest: str) -> Embedding | None:
        found: Embedding | None = await self._call("find", digest)
        return found

    async def encode_track(self, samples: Any, rate: int) -> RowsArray:
        rows: RowsArray = await self._call("encode_track", samples, rate, large=True)
        return rows

    async def encode_part(
        self, samples: Any, rate: int, digest: str, lead: int, seconds: int
    ) -> Embedding:
        part: Embedding = await self._call(
            "encode_part", samples, rate, digest, lead, seconds, large=True
        )
        return part


class ServeVideo(_Calls):
    """`VideoStage` over a handle."""

    async def hold(self, data: bytes) -> Any:
        if len(data) <= _BY_VALUE:
            return data
        # Into the object store once, from where every replica maps it. As an array: bytes would be
        # copied out.
        return await asyncio.to_thread(ray.put, np.frombuffer(data, np.uint8))

    async def begin_clip(
        self, held: Any, token: str, sampling: Mapping[str, Any]
    ) -> Clip | LongClip:
        clip: Clip | LongClip = await self._call(
            "begin_clip", held, token, dict(sampling), large=True
        )
        return clip

    async def decode_part(
        self, held: Any, token: str, sampling: Mapping[str, Any], size: tuple[int, int], part: Part
    ) -> Clip:
        clip: Clip = await self._call(
            "decode_part", held, token, dict(sampling), size, part, large=True
        )
        return clip

    async def decode_sound_part(self, held: Any, token: str, part: SoundPart) -> Sound:
        sound: Sound = await self._call("decode_sound_part", held, token, part, large=True)
        return sound

    async def decode_sound(self, data: bytes) -> Sound:
        sound: Sound = await self._call("decode_sound", data, large=True)
        return sound


class ServeLlm(_Calls):
    """`LlmStage` over a handle."""

    async def chat(
        self, body: Mapping[str, Any], embeddings: Sequence[Embedding], route: Route | None = None
    ) -> AsyncGenerator[ReplyHead | bytes, None]:
        large = sum(map(_row_bytes, embeddings)) > _BY_VALUE
        handle = (self._large if large else self._small).options(stream=True)
        more = () if route is None else (route,)
        stream = handle.chat.remote(dict(body), list(embeddings), *more)
        # The rows are on their way: do not hold them for as long as the answer takes.
        del body, embeddings
        try:
            async for item in stream:
                yield item
        except Exception as failure:
            raise translate(failure, self._stage) from failure
        except BaseException:  # the reader left
            cancel(stream)
            raise

    async def models(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._call("models")
        return found


def _row_bytes(embedding: Embedding) -> int:
    rows = embedding.rows
    return int(rows.data.nbytes) if isinstance(rows, RowsArray) else 0


def serve_stages(
    images: DeploymentHandle,
    audio: DeploymentHandle,
    video_decoder: DeploymentHandle,
    llm: Sequence[DeploymentHandle],
    buckets: BucketPolicy | None,
    block_bytes: int,
    may_sleep: bool = False,
) -> Stages:
    """All stages over their handles; `llm`: one, or one for each of `buckets`."""
    classes = [
        LengthClass(ServeLlm(handle, "language model"), view_key(handle.app_name, name))
        for handle in llm
        for name in [handle.deployment_name]
    ]
    return Stages(
        images=ServeImages(images, "image encoder"),
        audio=ServeAudio(audio, "audio encoder"),
        video=ServeVideo(video_decoder, "video decoder"),
        llm=RoutedLlm(classes, buckets, block_bytes, may_sleep),
    )
