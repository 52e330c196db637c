"""Tones and beeps."""

from __future__ import annotations

import numpy as np

from tools.pocket.data.sample import Stream

RATE = 24_000
LOW = (180.0, 330.0)
HIGH = (750.0, 1500.0)


def _wave(stream: Stream, start: float, end: float, seconds: float) -> np.ndarray:
    """A tone that glides from ``start`` to ``end`` Hz: float32 [n], peak 1."""
    rng = stream.rng
    count = round(seconds * RATE)
    frequency = start * (end / start) ** np.linspace(0, 1, count)
    phase = 2 * np.pi * np.cumsum(frequency) / RATE
    overtone, weight = rng.choice((2, 3)), rng.choice((0.0, 0.0, 0.2, 0.4))
    wave = (np.sin(phase) + weight * np.sin(overtone * phase)) / (1 + weight)
    fade = min(count // 4, round(RATE * rng.uniform(0.005, 0.03)))
    envelope = np.ones(count)
    envelope[:fade] = np.linspace(0, 1, fade)
    envelope[count - fade :] = np.linspace(1, 0, fade)
    return (wave * envelope).astype(np.float32)


def tone(stream: Stream, kind: str) -> np.ndarray:
    """A "low", "high", "rising" or "falling" tone of 0.25 to 0.6 s, or a short "beep"."""
    rng = stream.rng
    low, high = rng.uniform(*LOW), rng.uniform(*HIGH)
    if kind == "beep":
        return _wave(stream, high, high, rng.uniform(0.08, 0.16))
    start, end = {
        "low": (low, low),
        "high": (high, high),
        "rising": (low, low * rng.uniform(2.2, 3.2)),
        "falling": (high, high / rng.uniform(2.2, 3.2)),
    }[kind]
    return _wave(stream, start, end, rng.uniform(0.25, 0.6))
