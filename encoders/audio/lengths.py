"""Lengths along the audio path, in integers: samples to mel frames to codes to embedding rows.

The one place that knows them, so that a count made before encoding equals the rows that encoding
gives. No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from encoders.errors import MediaError

# Below and above, a header is broken or hostile: resampling multiplies the number of samples by
# target / rate. 64 channels is seventh-order ambisonics; more means that the axes are swapped.
MIN_RATE = 1_000
MAX_RATE = 768_000
MAX_CHANNELS = 64


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def resampled_length(n_samples: int, rate: int, target: int) -> int:
    """Samples after resampling: ceil(n * target / rate), torchaudio's rule in exact integers.

    (torchaudio computes the quotient in float32, which is off from some ten million samples on.)
    """
    return ceil_div(n_samples * target, rate)


@dataclass(frozen=True)
class SoundLengths:
    """The integers of a checkpoint that decide how long things are."""

    sampling_rate: int = 24_000
    n_fft: int = 960
    hop: int = 240
    kernel: int = 3
    stride: int = 2
    pooler: int = 2
    group: int = 4
    segment: int = 6_000

    @property
    def min_samples(self) -> int:
        """Shortest sound the reflect padding of n_fft // 2 can take; shorter ones get silence."""
        return self.n_fft // 2 + 1

    def samples(self, n_samples: int, rate: int) -> int:
        """Samples at the model's rate, silence added to very short sounds included."""
        return max(resampled_length(n_samples, rate, self.sampling_rate), self.min_samples)

    def mel_frames(self, n_samples: int, rate: int) -> int:
        return 1 + self.samples(n_samples, rate) // self.hop

    def segments(self, mel_frames: int) -> list[int]:
        """Mel frames of each independently encoded segment: full ones, then the remainder."""
        full, rest = divmod(mel_frames, self.segment)
        return [self.segment] * full + ([rest] if rest else [])

    def parts(self, mel_frames: int, most: int) -> list[int]:
        """Mel frames of parts that, encoded one by one, give the rows of the whole sound.

        Of at most `most` frames, but never less than one unit: whole segments whose codes fill
        whole groups, since neither a segment nor a group sees its neighbours.
        """
        unit = self.segment * (self.group // math.gcd(self.codes(self.segment), self.group))
        full, rest = divmod(mel_frames, max(most // unit, 1) * unit)
        return [max(most // unit, 1) * unit] * full + ([rest] if rest else [])

    def hidden_frames(self, segment_frames: int) -> int:
        """Transformer positions of a segment: both convolutions pad by one, the second strides."""
        first = segment_frames + 3 - self.kernel
        return (first + 2 - self.kernel) // self.stride + 1

    def codes(self, segment_frames: int) -> int:
        """Code vectors of a segment: its hidden frames pooled, an odd rest counts as a whole."""
        return ceil_div(self.hidden_frames(segment_frames), self.pooler)

    def tokens_of_mel(self, mel_frames: int) -> int:
        """Embedding rows of a sound with so many mel frames."""
        return ceil_div(sum(map(self.codes, self.segments(mel_frames))), self.group)

    def tokens(self, n_samples: int, rate: int) -> int:
        """Embedding rows of a sound of `n_samples` samples per channel at `rate` Hz."""
        return self.tokens_of_mel(self.mel_frames(n_samples, rate))


def check_sound(channels: int, n_samples: int, rate: int, max_seconds: float) -> None:
    """Raise `MediaError` for a sound that no sane file holds or that is too long."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise MediaError(f"sampling rate {rate} Hz is not in {MIN_RATE}..{MAX_RATE}")
    if not 1 <= channels <= MAX_CHANNELS:
        raise MediaError(
            f"{channels} sound channels, allowed 1..{MAX_CHANNELS} (axes: [channels, samples])"
        )
    if n_samples > max_seconds * rate:
        seconds = n_samples / rate
        raise MediaError(f"sound of {seconds:.1f} s is longer than the limit of {max_seconds:g} s")
