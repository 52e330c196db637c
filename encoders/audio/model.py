"""The audio path as one object: count, pre-process, encode. See `AudioModel`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from encoders.audio.config import EncoderConfig
from encoders.audio.encoder import CodeEncoder, SpeechEmbeddings, group_codes
from encoders.audio.lengths import check_sound
from encoders.audio.mel import MelFrontEnd
from encoders.audio.options import AudioOptions
from encoders.audio.tokenizer import AudioTokenizer
from encoders.device import side_stream


class AudioModel:
    """Sounds to embedding rows with the checkpoint's audio tokenizer and audio encoder.

    What a sound gives does not depend on what is encoded with it (up to the rounding of the
    matrix products, whose order of summation a library may choose by size). Calls keep no state,
    so several threads may call at once.
    """

    def __init__(
        self,
        tokenizer: AudioTokenizer,
        embeddings: SpeechEmbeddings,
        encoder: CodeEncoder,
        config: EncoderConfig,
        options: AudioOptions,
    ) -> None:
        self.tokenizer = tokenizer
        self.embeddings = embeddings
        self.encoder = encoder
        self.config = config
        self.options = options
        self.lengths = tokenizer.lengths
        self.device = tokenizer.conv1.weight.device
        self.front_end = MelFrontEnd(tokenizer.config, self.device)

    @property
    def hidden(self) -> int:
        """Width of the rows."""
        return self.config.out_hidden

    def count_tokens(self, n_samples: int, rate: int) -> int:
        """Rows that `encode` gives for `n_samples` samples per channel at `rate` Hz.

        Integers only. Raises `MediaError` for a rate or a duration that is not accepted.
        """
        check_sound(1, n_samples, rate, self.options.max_seconds)
        return self.lengths.tokens(n_samples, rate)

    def check(self, samples: np.ndarray, rate: int) -> None:
        """Raises what `preprocess` would raise for the type, shape, rate or duration."""
        if samples.ndim != 2 or samples.dtype != np.float32:
            raise TypeError(
                f"samples must be float32 [channels, n], got {samples.dtype} {samples.shape}"
            )
        check_sound(samples.shape[0], samples.shape[1], rate, self.options.max_seconds)

    @torch.inference_mode()
    def preprocess(self, samples: np.ndarray, rate: int) -> torch.Tensor:
        """Log-mel frames [T, n_mels] float32, on the model's device, of [channels, n] float32.

        T = 1 + N // hop, N = ceil(n * 24000 / rate). A sound of 0 to 480 samples at 24 kHz gets
        silence up to 481 (the reflect padding of the transform needs n_fft // 2 + 1), hence one
        row. Raises `MediaError` for rates, channel counts and durations that are not accepted
        and for samples that are not finite.
        """
        self.check(samples, rate)
        with side_stream(self.device):
            return self.front_end(samples, rate, self.lengths.min_samples)

    @torch.inference_mode()
    def encode(self, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Rows [tokens, hidden] in the model's type for each mel [T >= 1, n_mels], in order."""
        for mel in mels:
            if mel.ndim != 2 or mel.shape[0] == 0:
                raise ValueError(f"mel must be [frames, bands] with frames, got {list(mel.shape)}")
        grouped = [group_codes(codes, self.config.group) for codes in self._tokenize(mels)]
        if not grouped:
            return []
        rows = self.encoder(self.embeddings(torch.cat(grouped)))
        return list(rows.split([codes.shape[0] for codes in grouped]))

    def warm_up(self) -> None:
        """Run the whole path once on a short stereo sound and one that needs two segments."""
        full = self.tokenizer.config.hop * self.lengths.segment
        noise = np.random.default_rng(0).standard_normal((2, 44_100), dtype=np.float32)
        long = np.zeros((1, full), dtype=np.float32)
        mels = [
            self.preprocess(noise * 0.1, 44_100),
            self.preprocess(long, self.tokenizer.config.sampling_rate),
        ]
        self.encode(mels)[0].sum().item()

    def _tokenize(self, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Codes [n, channels] of each mel; the segments of all sounds are batched together."""
        segments = [segment for mel in mels for segment in mel.split(self.lengths.segment)]
        codes: dict[int, torch.Tensor] = {}
        for batch in self._batches([segment.shape[0] for segment in segments]):
            sizes = [segments[i].shape[0] for i in batch]
            packed = self.tokenizer(torch.cat([segments[i] for i in batch]), sizes)
            counts = [self.lengths.codes(size) for size in sizes]
            codes.update(zip(batch, packed.split(counts), strict=True))
        in_order = (codes[i] for i in range(len(segments)))
        return [
            torch.cat(list(islice(in_order, len(self.lengths.segments(mel.shape[0])))))
            for mel in mels
        ]

    def _batches(self, sizes: Sequence[int]) -> Iterator[list[int]]:
        """Indices sorted by size, cut so that a batch stays within `batch_frames`."""
        batch: list[int] = []
        frames = 0
        for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            if batch and frames + sizes[i] > self.options.batch_frames:
                yield batch
                batch, frames = [], 0
            batch.append(i)
            frames += sizes[i]
        if batch:
            yield batch
