"""Sinc resampling on the tensor's device: Hann window, width 6 zero crossings, rolloff 0.99.

The filter is torchaudio's `sinc_interp_hann` (the published model code resamples with it), with
two differences in how it is computed: kernels in float64 before rounding, and a form for rates
that share no large divisor with the target. torchaudio's dense kernel for 44,101 to 24,000 Hz
would take 4 GB; a file header may say any rate.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch.nn import functional as F

from encoders.audio.lengths import ceil_div, resampled_length

_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
_DENSE_ENTRIES = 1 << 20
# A frame gives at least this many outputs: frames overlap by the filter's width, and short ones
# (48 kHz has one output per two inputs) would be mostly overlap.
_FRAME_OUTPUTS = 64
# Elements of the windows that one step lays out; bounds memory, not the result.
_STEP_ELEMENTS = 1 << 22


def resample(wave: torch.Tensor, rate: int, target: int) -> torch.Tensor:
    """Resample `wave` [n], float32, from `rate` to `target` Hz: [ceil(n * target / rate)]."""
    divisor = math.gcd(rate, target)
    step, phases = rate // divisor, target // divisor
    length = resampled_length(wave.shape[0], rate, target)
    if step == phases or length == 0:
        return wave
    repeat = ceil_div(_FRAME_OUTPUTS, phases)
    step, phases = step * repeat, phases * repeat
    dense = phases * (step + 2 * _half_width(step, phases)) <= _DENSE_ENTRIES
    return (_by_frames if dense else _by_samples)(wave, step, phases, length)


def _half_width(step: int, phases: int) -> int:
    return math.ceil(_ZERO_CROSSINGS * step / (min(step, phases) * _ROLLOFF))


def _weights(distance: torch.Tensor, step: int, phases: int) -> torch.Tensor:
    """Filter weight of input samples at `distance` (float64, in input samples) from an output."""
    cutoff = min(step, phases) * _ROLLOFF / step
    t = (distance * cutoff).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    hann = torch.cos(t * (math.pi / _ZERO_CROSSINGS / 2)).square()
    return (torch.sinc(t) * hann * cutoff).float()


@lru_cache(maxsize=32)
def _dense_kernel(step: int, phases: int, device: torch.device) -> torch.Tensor:
    """Weights [step + 2 * half, phases]: column p gives output p of a frame of `step` inputs."""
    half = _half_width(step, phases)
    inputs = torch.arange(-half, step + half, dtype=torch.float64)
    outputs = torch.arange(phases, dtype=torch.float64) * step / phases
    return _weights(inputs[:, None] - outputs[None, :], step, phases).to(device)


def _by_frames(wave: torch.Tensor, step: int, phases: int, length: int) -> torch.Tensor:
    """Every `step` inputs give `phases` outputs: one matrix product over overlapping frames."""
    kernel = _dense_kernel(step, phases, wave.device)
    taps, half = kernel.shape[0], _half_width(step, phases)
    frames = ceil_div(length, phases)
    padded = F.pad(wave, (half, frames * step + half - wave.shape[0]))
    out = wave.new_empty(frames, phases)
    chunk = max(1, _STEP_ELEMENTS // taps)
    for first in range(0, frames, chunk):
        count = min(chunk, frames - first)
        part = padded[first * step : (first + count - 1) * step + taps]
        torch.matmul(part.unfold(0, taps, step), kernel, out=out[first : first + count])
    return out.flatten()[:length]


def _by_samples(wave: torch.Tensor, step: int, phases: int, length: int) -> torch.Tensor:
    """Each output from the taps around its own position: [phases, taps] weights, no zeros.

    Less work and memory than `_by_frames` where frames are long, slower per weight.
    """
    half = _half_width(step, phases)
    outputs = torch.arange(min(phases, length), device=wave.device) * step
    taps = torch.arange(-half, half + 1, device=wave.device)
    whole = torch.div(outputs, phases, rounding_mode="floor")
    fraction = (outputs - whole * phases).double() / phases
    weights = _weights(taps.double()[None, :] - fraction[:, None], step, phases)
    near = whole[:, None] + (taps + half)[None, :]

    frames = ceil_div(length, phases)
    padded = F.pad(wave, (half, frames * step + half + 1 - wave.shape[0]))
    windows = padded.unfold(0, step + 2 * half + 1, step)
    chunk = max(1, _STEP_ELEMENTS // weights.numel())
    parts = [(part[:, near] * weights).sum(2) for part in windows.split(chunk)]
    return torch.cat(parts).flatten()[:length]
