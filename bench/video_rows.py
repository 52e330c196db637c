"""The application's way from a clip's bytes to its rows, in this process and without HTTP.

The gateway's own `MediaEncoder` over the real stages of the shipped settings: decoder processes,
image encoder, node store. Only Ray and the network are left out.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from app.chat import MediaItem
from app.frame_size import size_rule
from app.item_options import OptionRules
from app.media import MediaEncoder
from app.settings import checkpoint_directory, config_path, load_settings, read_model_config
from app.stages import Stages
from bench.encoders import image_encoder
from encoders.embedding import Embedding, RowsArray
from encoders.image_encoder import ImageEncoder
from encoders.store import StoreOptions
from encoders.store.directory import PREFIX
from video.deployment import VideoDecoder
from video.long_clip import Part

STORE_BYTES = 256 << 20


class LocalVideo(VideoDecoder):
    """The decoder as a stage; remembers the parts that it was asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.decoded: list[Part] = []

    async def hold(self, data: bytes) -> bytes:
        return data

    async def decode_part(self, data: Any, token: str, sampling: Any, size: Any, part: Part) -> Any:
        self.decoded.append(part)
        return await super().decode_part(data, token, sampling, size, part)


class LocalImages:
    """The image encoder as a stage."""

    def __init__(self, encoder: ImageEncoder) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    async def adopt(self, embedding: Embedding) -> None:
        """There is one node: what it stores is there already."""


class File:
    """In place of the network: any URL is the bytes of one file."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        return self.data


class Rows:
    """Turns clips into rows. `video`: decoder options beside the settings' own. Clips have no
    sound, so there is no audio encoder."""

    def __init__(self, share: float = 1.0, **video: Any) -> None:
        """`share`: of the settings' pixels for all frames, so that a shorter clip has frames of the
        size that an hour's would have."""
        settings = load_settings(config_path(None))
        if settings.video.total_max_pixels is not None:
            pixels = round(share * settings.video.total_max_pixels)
            section = settings.video.model_copy(update={"total_max_pixels": pixels})
            settings = settings.model_copy(update={"video": section})
        model = read_model_config(settings)
        rules = OptionRules.of(settings, model)
        self.size_of = size_rule(model, rules.frame_pixels)
        self.video = LocalVideo({**settings.video.model_dump(), **video}, self.size_of)
        directory = Path(settings.embeddings.directory) / f"{PREFIX}{secrets.token_hex(6)}"
        self._directory = directory
        store = StoreOptions(str(directory), STORE_BYTES)
        self.encoder = image_encoder(store=store)
        self.frame_pixels = rules.frame_pixels
        self._file = File(b"")
        nobody: Any = None
        decoder: Any = self.video
        self._media = MediaEncoder(
            Stages(LocalImages(self.encoder), nobody, decoder, nobody),
            self._file,
            rules,
            checkpoint_directory(settings).name,
            max_item_bytes=1 << 32,
            timeout_s=3600.0,
            store=store,
            parts_in_work=settings.video.parts_in_work,
        )

    async def ready(self) -> None:
        await self.video.ready()

    async def ask(self, data: bytes, **options: Any) -> Embedding:
        """The embedding of a clip, as a request for it would have it."""
        self._file.data = data
        item = MediaItem("video", 0, 0, "https://bench/clip.mp4", "uri", options)
        (found,) = await self._media.encode([item])
        return found

    async def array(self, embedding: Embedding) -> RowsArray:
        """The rows themselves."""
        return await self._media._load(embedding)

    def forget(self, digest: str) -> None:
        """Take an embedding out of the node's store."""
        os.unlink(os.path.join(self._directory, digest))

    async def close(self) -> None:
        self.video.close()
        await self.encoder.close()
