"""The stages as the pipeline sees them.

The pipeline knows these protocols only: in the application they are Serve handles
(`app.serve_stages`), in tests plain objects. Every method may raise the errors below and nothing
else; `asyncio.CancelledError` stops the work behind it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from encoders.embedding import Embedding, RowsArray
from llm.reply import ReplyHead
from video.long_clip import LongClip, Part, SoundPart


class StageError(Exception):
    """A fault of ours in a stage; `stage` is its name ("image encoder")."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(f"{stage}: {reason}")
        self.stage = stage
        self.reason = reason


class StageDied(StageError):
    """The replica is gone or going: the call may be repeated on another one."""


class StageFull(StageError):
    """No replica takes another call now."""


class StageFailed(StageError):
    """The stage broke on this call: repeating it would break again."""


class RowsGone(StageError):
    """Rows that a request refers to were evicted before the stage opened them: encode again."""


class BadMedia(Exception):
    """The media itself is at fault. `reason` may be shown to a client."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Stage(Protocol):
    """What all stages have."""

    async def ready(self) -> bool: ...

    async def stats(self) -> dict[str, Any]:
        """Work in progress and counters of one replica, as plain data."""
        ...


class ImageStage(Stage, Protocol):
    """The image encoder; its store also keeps clips."""

    async def encode_image(
        self, data: bytes, digest: str, options: Mapping[str, Any]
    ) -> Embedding: ...

    async def encode_frames(
        self, frames: Any, digest: str, options: Mapping[str, Any]
    ) -> tuple[RowsArray, tuple[int, int, int]]:
        """Vision rows of a clip's frames uint8 [T, H, W, 3] and their grid (t, h, w)."""
        ...

    async def encode_part(self, frames: Any, digest: str, options: Mapping[str, Any]) -> Embedding:
        """The rows of a part of a clip, kept under a digest of its own; the layout is the rows."""
        ...

    async def find(self, digest: str) -> Embedding | None:
        """The embedding of an item (a clip, too) that need not be decoded again, or None."""
        ...

    async def adopt(self, embedding: Embedding) -> None:
        """Keep a clip's embedding, so that `find` on any node finds it."""
        ...


class AudioStage(Stage, Protocol):
    """The audio encoder; samples are float32 [channels, n] at `rate` per second."""

    async def encode_samples(self, samples: Any, rate: int, digest: str) -> Embedding: ...

    async def find(self, digest: str) -> Embedding | None:
        """The embedding of a sound that need not be decoded again, or None."""
        ...

    async def encode_track(self, samples: Any, rate: int) -> RowsArray:
        """The rows alone, for the sound track of a clip."""
        ...

    async def encode_part(
        self, samples: Any, rate: int, digest: str, lead: int, seconds: int
    ) -> Embedding:
        """The rows of a part of a track: of `seconds`, after the first `lead` of `samples`."""
        ...


class Sound(Protocol):
    """A decoded sound: float32 samples [channels, n] at `rate` per second."""

    @property
    def samples(self) -> Any: ...

    @property
    def rate(self) -> int: ...


class Clip(Protocol):
    """A decoded clip: sampled frames uint8 [T, H, W, 3], their times in seconds, its sound, and how
    many frames could not be decoded."""

    @property
    def frames(self) -> Any: ...

    @property
    def times(self) -> Any: ...

    @property
    def sound(self) -> Sound | None: ...

    @property
    def lost(self) -> int: ...


class VideoStage(Stage, Protocol):
    """The video decoder, which also decodes stand-alone sounds."""

    async def hold(self, data: bytes) -> Any:
        """The bytes in the form in which the calls for one clip share them."""
        ...

    async def begin_clip(
        self, held: Any, token: str, sampling: Mapping[str, Any]
    ) -> Clip | LongClip:
        """A short clip decoded, a long one planned; `token` names the bytes."""
        ...

    async def decode_part(
        self, held: Any, token: str, sampling: Mapping[str, Any], size: tuple[int, int], part: Part
    ) -> Clip:
        """The frames of a part of a long clip."""
        ...

    async def decode_sound_part(self, held: Any, token: str, part: SoundPart) -> Sound:
        """The sound of a part of a long clip."""
        ...

    async def decode_sound(self, data: bytes) -> Sound: ...


class LlmStage(Stage, Protocol):
    """The language model."""

    def chat(
        self, body: Mapping[str, Any], embeddings: Sequence[Embedding]
    ) -> AsyncGenerator[ReplyHead | bytes, None]:
        """First the head of the HTTP reply, then its body in pieces."""
        ...

    async def models(self) -> dict[str, Any]:
        """`id` and `max_model_len` of the model."""
        ...


@dataclass(frozen=True)
class Stages:
    """All stages of the application."""

    images: ImageStage
    audio: AudioStage
    video: VideoStage
    llm: LlmStage

    def named(self) -> dict[str, Stage]:
        """The stages by the names that errors and /ready use."""
        return {
            "image encoder": self.images,
            "audio encoder": self.audio,
            "video decoder": self.video,
            "language model": self.llm,
        }
