"""The audio encoder replica: decoded samples to embedding rows.

A plain class: `app/` wraps it for Ray Serve, tests call it directly. torch is imported when it is
constructed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any

from encoders.audio import load_audio_model
from encoders.batcher import Batcher, BatchLimits
from encoders.embedding import Embedding, RowsArray, audio_layout
from encoders.encode_once import Encoded, EncodeOnce
from encoders.options import AudioEncoderOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch


class AudioEncoder:
    """Resamples, transforms and encodes sounds, many requests to a forward pass.

    `checkpoint`: directory with config.json, `audio_tokenizer/` and the `audio_encoder.*` and
    `speech_embeddings.*` tensors. `options`: `AudioEncoderOptions` or a settings section with its
    keys. `put`: what the rows go through before they are returned; `ray.put` makes them a reference
    into the object store.
    """

    def __init__(
        self,
        checkpoint: str,
        options: AudioEncoderOptions | Mapping[str, Any] | None = None,
        put: Callable[[RowsArray], Any] | None = None,
    ) -> None:
        self._options = given = AudioEncoderOptions.of(options)
        self._model = load_audio_model(
            checkpoint,
            given.device,
            given.dtype,
            {
                "attention": given.attention,
                "batch_frames": given.max_batch_frames,
                "max_seconds": given.max_seconds,
            },
        )
        self._once = EncodeOnce(given.cache_bytes, put, given.store)
        self._workers = ThreadPoolExecutor(given.mel_threads, thread_name_prefix="audio-prepare")
        limits = BatchLimits(
            max_work=given.max_batch_frames,
            max_items=given.max_batch_items,
            max_wait=given.max_wait_ms / 1000,
        )
        self._batcher: Batcher[torch.Tensor, RowsArray] = Batcher(
            self._forward, limits, name="audio-forward"
        )
        if given.warm_up:
            self._warm_up()

    def _warm_up(self) -> None:
        import numpy as np

        sound = np.zeros((2, 44_100), np.float32)
        mel = self._workers.submit(self._model.preprocess, sound, 44_100).result()
        for batch in ([mel], [mel, mel[: mel.shape[0] // 2]]):
            self._batcher.warm_up(batch)

    def _forward(self, mels: Sequence[torch.Tensor]) -> list[RowsArray]:
        return [RowsArray.from_tensor(rows) for rows in self._model.encode(mels)]

    async def encode_samples(self, samples: np.ndarray, rate: int, digest: str) -> Embedding:
        """The embedding of float32 samples [channels, n] in -1..1 at `rate` Hz.

        `digest` must cover the sound as it was sent: equal digests are encoded once. Raises
        `MediaError` for a rate, channel count or duration out of range and for samples that are no
        numbers.
        """
        return await self._once.get(digest, lambda: self._encode_samples(samples, rate, digest))

    async def _encode_samples(self, samples: np.ndarray, rate: int, digest: str) -> Encoded:
        rows, seconds = await self._encode(samples, rate)
        return Encoded(Embedding("audio", digest, audio_layout(len(rows)), rows), seconds)

    async def find(self, digest: str) -> Embedding | None:
        """The cached embedding of a sound, or None: a caller need not decode what is found."""
        return self._once.find(digest)

    async def encode_track(self, samples: np.ndarray, rate: int) -> RowsArray:
        """The rows alone, as a clip's sound track needs them (`compose_video`). Never `put`."""
        rows, _ = await self._encode(samples, rate)
        return rows

    async def _encode(self, samples: np.ndarray, rate: int) -> tuple[RowsArray, float]:
        """Rows and the seconds of work in them."""
        self._model.count_tokens(samples.shape[-1], rate)  # refuses before a thread is taken
        loop = asyncio.get_running_loop()
        mel, seconds = await loop.run_in_executor(self._workers, self._prepare, samples, rate)
        rows = await self._batcher.submit(mel, mel.shape[0])
        return rows, seconds + mel.shape[0] * self._batcher.stats.seconds_per_work

    def _prepare(self, samples: np.ndarray, rate: int) -> tuple[torch.Tensor, float]:
        """The mel frames and how long they took in this thread, without waiting for it."""
        start = perf_counter()
        return self._model.preprocess(samples, rate), perf_counter() - start

    async def ready(self) -> bool:
        """True: a replica exists only once its model is loaded and warm."""
        return True

    async def stats(self) -> dict[str, Any]:
        """Batch, cache and single-flight statistics, and queued work in mel frames."""
        return {**self._batcher.report(), **self._once.report()}

    async def check(self) -> None:
        """Raises `AssertionError` when the cache or the flights are not consistent."""
        self._once.check()

    async def close(self) -> None:
        """Fail what waits and free the threads."""
        await self._batcher.close()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._once.close()
