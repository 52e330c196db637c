"""HDR and wide gamut to the BT.709 picture that the model was trained on. Arithmetic only.

The rule, applied to pictures whose metadata say PQ or HLG (BT.2100) or BT.2020 primaries:

1. Linear light in cd/m2: PQ by SMPTE ST 2084; HLG by the inverse OETF and the OOTF of a display of
   1000 cd/m2 (system gamma 1.2); everything else is left relative, by a power of 2.4 (BT.1886).
2. HDR is taken relative to its reference white, 203 cd/m2 (BT.2408).
3. BT.2020 primaries become BT.709 (BT.2087); what lies outside is cut at 0.
4. HDR highlights are compressed by their largest component, which keeps the hue: nothing changes up
   to KNEE, above it a shoulder brings PEAK (1000 cd/m2) to 1; what is brighter is cut.
5. Encoded by a power of 1/2.4 and rounded to 8 bits.

So diffuse white becomes 233, and a picture graded for SDR white keeps room for its highlights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

REFERENCE_WHITE = 203.0
PEAK = 1000.0 / REFERENCE_WHITE
KNEE = 0.6
GAMMA = 2.4

BT709_PRIMARIES, BT2020_PRIMARIES = 1, 9
TRANSFERS = {16: "pq", 18: "hlg"}
"""Transfer characteristics by their numbers in ISO/IEC 23091-2, as libav has them."""

TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]],
    np.float32,
)
"""Linear BT.2020 to linear BT.709 (BT.2087, annex)."""

Transfer = Literal["pq", "hlg", "sdr"]


@dataclass(frozen=True)
class Conversion:
    """What a picture needs to become BT.709."""

    transfer: Transfer
    wide: bool
    """Whether the primaries are those of BT.2020."""

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """uint16 [H, W, 3], full range, RGB as coded -> uint8 [H, W, 3]."""
        light = _linear(self.transfer)[pixels]
        if self.transfer == "hlg":
            light = _hlg_display(light)
        if self.wide:
            light = np.maximum(light @ TO_BT709.T, 0)
        if self.transfer != "sdr":
            light *= _gain(light.max(axis=2, keepdims=True))
        np.minimum(light, 1, out=light)
        coded = np.power(light, np.float32(1 / GAMMA), out=light)
        coded *= 255
        return np.rint(coded, out=coded).astype(np.uint8)


def conversion(frame: Any) -> Conversion | None:
    """What an av.VideoFrame needs by its metadata; None for SDR in BT.601 or BT.709 primaries.

    HDR without primaries is taken to have those of BT.2020, which its standards prescribe.
    """
    transfer = TRANSFERS.get(frame.color_trc)
    if transfer is None:
        wide = frame.color_primaries == BT2020_PRIMARIES
        return Conversion("sdr", True) if wide else None
    kind: Transfer = "pq" if transfer == "pq" else "hlg"
    return Conversion(kind, frame.color_primaries != BT709_PRIMARIES)


@lru_cache(maxsize=3)
def _linear(transfer: Transfer) -> np.ndarray:
    """float32 [65536]: light of a coded value, 1 = reference white (HLG: scene light, 1 = peak)."""
    coded = np.arange(1 << 16) / 65535
    if transfer == "pq":
        light = pq_eotf(coded) / REFERENCE_WHITE
    elif transfer == "hlg":
        light = hlg_inverse_oetf(coded)
    else:
        light = coded**GAMMA
    return light.astype(np.float32)


def pq_eotf(coded: np.ndarray) -> np.ndarray:
    """0..1 -> cd/m2 (SMPTE ST 2084)."""
    m1, m2, c1, c2, c3 = 2610 / 16384, 2523 / 32, 3424 / 4096, 2413 / 128, 2392 / 128
    root = coded ** (1 / m2)
    return 10_000 * (np.maximum(root - c1, 0) / (c2 - c3 * root)) ** (1 / m1)


def hlg_inverse_oetf(coded: np.ndarray) -> np.ndarray:
    """0..1 -> scene light 0..1 (BT.2100)."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    return np.where(coded <= 0.5, coded**2 / 3, (np.exp((coded - c) / a) + b) / 12)


def _hlg_display(scene: np.ndarray) -> np.ndarray:
    """BT.2100's OOTF: scene light [H, W, 3] -> display light, 1 = reference white."""
    luminance = scene @ np.array([0.2627, 0.6780, 0.0593], np.float32)
    display: np.ndarray = scene * (PEAK * luminance**0.2)[:, :, None]
    return display


def _gain(largest: np.ndarray) -> np.ndarray:
    """What to multiply a pixel with, given its largest component."""
    span = (PEAK - KNEE) / (1 - KNEE)
    over = np.clip((largest - KNEE) / (1 - KNEE), 0, span)
    shoulder = KNEE + (1 - KNEE) * over * (1 + over / span**2) / (1 + over)
    kept: np.ndarray = np.where(largest > KNEE, shoulder / np.maximum(largest, KNEE), 1)
    return kept.astype(np.float32)
