"""Samples to log-mel frames, as tensor operations on the model's device.

Reference: torchaudio's MelSpectrogram as the published model code configures it (power 1, centre,
reflect padding, periodic Hann window, HTK scale without normalisation), then
log(max(x, 1e-7)). Frames are transformed some thousand at a time, so a long sound never holds its
whole spectrum.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from encoders.arrays import tensor_view
from encoders.audio.config import TokenizerConfig
from encoders.audio.resample import resample
from encoders.errors import MediaError

_FLOOR = 1e-7
_FRAMES_PER_STEP = 4096


class MelFrontEnd:
    """Turns [channels, n] samples at any rate into mel frames [T, n_mels] (float32)."""

    def __init__(self, config: TokenizerConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        margin = config.n_fft - config.window_size
        window = torch.hann_window(config.window_size, periodic=True, dtype=torch.float64)
        self._window = F.pad(window, (margin // 2, margin - margin // 2)).float().to(device)
        self._bands = mel_bands(config).to(device)

    def __call__(self, samples: np.ndarray, rate: int, min_samples: int) -> torch.Tensor:
        """Log-mel frames [1 + N // hop, n_mels] of `samples` [channels, n] float32 at `rate` Hz.

        N is the resampled length. Sounds of fewer than `min_samples` samples then get silence at
        their end (reflect padding needs that many). Channels are averaged before resampling:
        both are linear, so it equals averaging afterwards and costs one channel's work.
        Raises `MediaError` when a sample is not finite.
        """
        mono = tensor_view(samples).to(self.device).mean(dim=0)
        wave = resample(mono, rate, self.config.sampling_rate)
        wave = F.pad(wave, (0, max(0, min_samples - wave.shape[0])))
        mel = self._log_mel(wave)
        # A NaN or infinity anywhere reaches the frames around it: one check covers the samples.
        if not bool(torch.isfinite(mel).all()):
            raise MediaError("sound has samples that are not finite numbers")
        return mel

    def _log_mel(self, wave: torch.Tensor) -> torch.Tensor:
        n_fft, hop = self.config.n_fft, self.config.hop
        edge = n_fft // 2
        padded = F.pad(wave[None], (edge, edge), mode="reflect")[0]
        frames = padded.unfold(0, n_fft, hop)
        parts = []
        for first in range(0, frames.shape[0], _FRAMES_PER_STEP):
            windowed = frames[first : first + _FRAMES_PER_STEP] * self._window
            bands = torch.fft.rfft(windowed).abs() @ self._bands
            parts.append(bands.clamp(min=_FLOOR).log())
        return torch.cat(parts)


def mel_bands(config: TokenizerConfig) -> torch.Tensor:
    """Triangular filters [n_fft // 2 + 1, n_mels], HTK mel scale, peak 1 (no normalisation)."""
    bins = torch.linspace(0, config.sampling_rate / 2, config.n_fft // 2 + 1, dtype=torch.float64)
    low, high = (_to_mel(torch.tensor(f).double()) for f in (config.f_min, config.f_max))
    steps = torch.linspace(0, 1, config.n_mels + 2, dtype=torch.float64)
    edges = 700 * (10 ** ((low + (high - low) * steps) / 2595) - 1)
    rise = (bins[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[None, 2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    return torch.minimum(rise, fall).clamp(min=0).float()


def _to_mel(hertz: torch.Tensor) -> torch.Tensor:
    return 2595 * torch.log10(1 + hertz / 700)
