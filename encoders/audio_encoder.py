"""The audio encoder replica: decoded samples to embedding rows.

torch is imported when it is constructed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from encoders.audio import load_audio_model
from encoders.embedding import Embedding, Rows, RowsArray, audio_layout
from encoders.encode_once import Encoded, EncodeOnce
from encoders.metrics import batch_metrics
from encoders.options import AudioEncoderOptions
from encoders.replica import EncoderReplica

if TYPE_CHECKING:
    import numpy as np
    import torch

# The cost of a preparation is its number of samples: 2, 20 and 200 seconds at 24 kHz.
SIZE_BOUNDS = (48_000, 480_000, 4_800_000)


class AudioEncoder(EncoderReplica["torch.Tensor"]):
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
        given = AudioEncoderOptions.of(options)
        self._batch_frames = given.max_batch_frames
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
        super().__init__(
            given,
            EncodeOnce(given.cache_bytes, put, given.store),
            self._forward,
            max_work=given.max_batch_frames,
            threads=given.mel_threads,
            bounds=SIZE_BOUNDS,
            first_guess=0.0,  # never needed: the work of a sound is known from its length
            name="audio",
            observer=batch_metrics("audio", "frames"),
        )
        if given.warm_up:
            self._warm_up()

    def _warm_up(self) -> None:
        import numpy as np

        mel = self._model.preprocess(np.zeros((2, 44_100), np.float32), 44_100)
        for batch in ([mel], [mel, mel[: mel.shape[0] // 2]]):
            self._batcher.warm_up(batch)

    def _forward(self, mels: Sequence[torch.Tensor]) -> list[RowsArray]:
        return [RowsArray.from_tensor(rows) for rows in self._model.encode(mels)]

    async def encode_samples(self, samples: np.ndarray, rate: int, digest: str) -> Embedding:
        """The embedding of float32 samples [channels, n] in -1..1 at `rate` Hz.

        `digest` must cover the sound as it was sent: equal digests are encoded once. Raises
        `MediaError` for a rate, channel count or duration out of range and for samples that are no
        numbers, `EncoderBusy` after `queue_timeout_s` without a forward pass.
        """
        return await self._once.get(digest, lambda: self._encode_samples(samples, rate, digest))

    async def _encode_samples(self, samples: np.ndarray, rate: int, digest: str) -> Encoded:
        rows, seconds = await self._encode(samples, rate)
        return Encoded(Embedding("audio", digest, audio_layout(len(rows)), rows), seconds)

    async def encode_track(self, samples: np.ndarray, rate: int) -> RowsArray:
        """The rows alone, as a clip's sound track needs them (`compose_video`). Never `put`."""
        rows, _ = await self._encode(samples, rate)
        return rows

    async def encode_part(
        self, samples: np.ndarray, rate: int, digest: str, lead: int, seconds: int
    ) -> Embedding:
        """The rows of `seconds` of a track, from samples that begin `lead` seconds earlier.

        What surrounds them in `samples` (a second is plenty) makes the mel frames those of the
        whole track. Parts of the tokenizer's own segment length (60 s) give the track's very rows,
        since it encodes segments by themselves. `digest` must cover all of it: equal digests are
        encoded once.
        """

        async def encode() -> Encoded:
            rows, cost = await self._encode(samples, rate, lead, seconds)
            layout = (Rows("audio", len(rows)),)
            return Encoded(Embedding("audio", digest, layout, rows), cost)

        return await self._once.get(digest, encode)

    async def _encode(
        self, samples: np.ndarray, rate: int, lead: int = 0, keep: int | None = None
    ) -> tuple[RowsArray, float]:
        """Rows and the seconds of work in them; of `keep` seconds after the first `lead` alone."""
        self._model.check(samples, rate)  # refuses before a thread is taken
        deadline = self._deadline()
        frames = self._model.lengths.mel_frames(samples.shape[-1], rate)
        with self._backlog.pending(frames):
            prepare = partial(self._prepare, samples, rate)
            mel, seconds = await self._workers.run(prepare, samples.size, deadline)
            if keep is not None:
                mel = self._cut(mel, lead, keep)
            # In parts, so that a sound of hours holds up no other for longer than a batch.
            parts = mel.split(self._model.lengths.parts(mel.shape[0], self._batch_frames))
            rows = await self._in_turns([partial(self._encode_part, part) for part in parts])
        return rows, seconds + mel.shape[0] * self._batcher.stats.seconds_per_work

    async def _encode_part(self, mel: torch.Tensor) -> RowsArray:
        return await self._batcher.submit(mel, mel.shape[0], self._deadline())

    def _cut(self, mel: torch.Tensor, lead: int, keep: int) -> torch.Tensor:
        lengths = self._model.lengths
        per_second = lengths.sampling_rate // lengths.hop
        return mel[lead * per_second : (lead + keep) * per_second]

    def _prepare(self, samples: np.ndarray, rate: int) -> tuple[torch.Tensor, float]:
        """The mel frames and how long they took in this thread, without waiting for it."""
        start = perf_counter()
        return self._model.preprocess(samples, rate), perf_counter() - start
