"""Any sample format to float32 [channels, n] (cases 51 and 57)."""

from __future__ import annotations

from typing import Any

import av
import numpy as np

SCALE = {"u8": 128.0, "s16": 32768.0, "s32": 2147483648.0}
"""Full scale of the integer formats. 24-bit samples arrive as s32, shifted up by libav."""

MAX_PLANES = 7
"""PyAV 18.1 finds a frame's planes by looking for a null pointer, which libav does not put behind
eight or more (7.1 AAC): it would read foreign memory. libav packs such frames first."""


class ToFloat:
    """Converts a track's frames; all come out with the first frame's rate and channels.

    A track that changes either midway is resampled by libav from there on.
    """

    def __init__(self, first: Any) -> None:
        self._rate = first.sample_rate
        self._layout = first.layout
        self._resampler: Any | None = None
        self._resampled: tuple[Any, ...] = ()

    def __call__(self, frame: Any) -> list[np.ndarray]:
        """float32 [channels, n] blocks; NaN and infinities become silence."""
        channels = len(frame.layout.channels)
        same = frame.sample_rate == self._rate and channels == len(self._layout.channels)
        readable = channels <= MAX_PLANES or not frame.format.is_planar
        if same and readable and frame.format.packed.name in (*SCALE, "flt", "dbl"):
            return [*self.flush(), to_float(frame)]
        signature = (frame.format.name, frame.layout.name, frame.sample_rate)
        rest = []
        if self._resampler is None or signature != self._resampled:
            rest = self.flush()
            self._resampler = av.AudioResampler("flt", self._layout, self._rate)
            self._resampled = signature
        return rest + [to_float(part) for part in self._resampler.resample(frame)]

    def flush(self) -> list[np.ndarray]:
        """What the resampler still holds back."""
        resampler, self._resampler = self._resampler, None
        return [to_float(part) for part in resampler.resample(None)] if resampler else []


def to_float(frame: Any) -> np.ndarray:
    """One av.AudioFrame of format u8, s16, s32, flt or dbl, planar or packed."""
    samples = frame.to_ndarray()
    if not frame.format.is_planar:  # [1, n * channels]
        samples = samples.reshape(-1, len(frame.layout.channels)).T
    name = frame.format.packed.name
    if name not in SCALE:
        return np.nan_to_num(samples.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    scaled = samples.astype(np.float32) - (128.0 if name == "u8" else 0.0)
    return scaled / np.float32(SCALE[name])
