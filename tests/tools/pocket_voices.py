"""A voice without a speech program: every word is its own chord, every sentence its words."""

from __future__ import annotations

from functools import cache

import numpy as np

from tools.pocket.data.sample import Stream
from tools.pocket.data.voices import RATE, VoiceClips, sentence
from tools.pocket.data.words import SPOKEN


def chord(word: str, take: int = 0) -> np.ndarray:
    """int16 [n], 0.2 s and some; two frequencies that tell the word."""
    number = SPOKEN.index(word)
    seconds = np.arange(round(RATE * (0.2 + 0.02 * take))) / RATE
    low, high = 300 + 90 * (number % 7), 1200 + 160 * (number // 7)
    wave = np.sin(2 * np.pi * low * seconds) + np.sin(2 * np.pi * high * seconds)
    return (wave * 8000).astype(np.int16)


def chord_voice(stream: Stream) -> VoiceClips:
    """The same voice for every stream."""
    return _voice()


@cache
def _voice() -> VoiceClips:
    """Clips laid out as ``tools.pocket.data.voices.record`` lays them out."""
    takes = 3
    texts = [word for word in SPOKEN for _ in range(takes)]
    clips = [chord(word, i % takes) for i, word in enumerate(texts)]
    for i in range(3):
        texts.append(sentence(Stream("train", "sentence", 0, i)))
        clips.append(np.concatenate([chord(word) for word in texts[-1].split()]))
    edges = np.cumsum([0, *(len(clip) for clip in clips)])
    return VoiceClips(np.concatenate(clips), edges, tuple(texts))
