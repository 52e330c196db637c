"""Listening tasks: spoken words and sentences, tones, beeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tools.pocket.data import tones, voices
from tools.pocket.data.sample import Sample, Sound, Stream, assistant, user
from tools.pocket.data.sound_codecs import CODECS, coded
from tools.pocket.data.voices import RATE, VoiceClips
from tools.pocket.data.words import NUMBERS, SPOKEN, SPOKEN_CORE

Piece = tuple[np.ndarray, str]
VoiceSource = Callable[[Stream], VoiceClips]
WORDS = ("Write down what you hear.", "What is said in the audio?", "What do you hear?")
TONES = ("Which tones do you hear?", "Name the tones in order.")
PACES = (0.86, 1.16)
BEEPS = ("How many beeps are there?", "Count the beeps.")


def any_voice(stream: Stream) -> VoiceClips:
    """A recorded voice of the stream's split; in training most play at another pace, which makes
    many voices of few."""
    rng = stream.rng
    voice = voices.load(rng.choice(voices.voice_names(stream.split)))
    if stream.split == "train" and rng.random() < 0.6:
        return replace(voice, pace=rng.uniform(*PACES))
    return voice


def spoken_word(stream: Stream, clips: VoiceClips, word: str) -> Piece:
    return clips.take(stream.rng.choice(clips.by_text[word])), word


def join(stream: Stream, pieces: Sequence[Piece], gaps: tuple[float, float]) -> Sound:
    """The pieces one after the other with random gaps, silence around them and wear."""
    rng = stream.rng
    parts: list[np.ndarray] = [np.zeros(round(RATE * rng.uniform(0.05, 0.4)), np.float32)]
    words: list[tuple[float, float, str]] = []
    at = len(parts[0])
    for i, (samples, text) in enumerate(pieces):
        if i:
            parts.append(np.zeros(round(RATE * rng.uniform(*gaps)), np.float32))
            at += len(parts[-1])
        parts.append(samples * rng.uniform(0.8, 1.2))
        words.append((at / RATE, (at + len(samples)) / RATE, text))
        at += len(samples)
    parts.append(np.zeros(round(RATE * rng.uniform(0.05, 0.5)), np.float32))
    return Sound(worn(stream, np.concatenate(parts)), RATE, tuple(words))


def worn(stream: Stream, wave: np.ndarray) -> np.ndarray:
    """A random level, and on most sounds white or brownish noise 12 to 40 dB below the peak; in
    training some have been through a lossy codec."""
    rng = stream.rng
    peak = float(np.abs(wave).max()) or 1.0
    wave = wave / peak
    if rng.random() < 0.7:
        noise: np.ndarray = stream.noise.standard_normal(len(wave), dtype=np.float32)
        if rng.random() < 0.5:
            brown = np.cumsum(noise)
            trend = np.convolve(brown, np.ones(240, np.float32) / 240, "same")
            noise = (brown - trend) / max(float((brown - trend).std()), 1e-6)
        wave = wave + noise * 10 ** (-rng.uniform(12, 40) / 20) * 0.3
    level = 10 ** rng.uniform(-1.2, -0.1)
    wave = np.clip(wave * level, -1, 1).astype(np.float32)
    if stream.split == "train" and rng.random() < 0.2:
        wave = coded(Sound(wave, RATE), rng.choice(tuple(CODECS)), 1000 * rng.randint(24, 96))
    return wave


def speech(
    stream: Stream, source: VoiceSource = any_voice, longest: int = 6, sentences: float = 0.2
) -> Sound:
    """One to ``longest`` words of one voice, most of them digits and colours, or a sentence."""
    rng = stream.rng
    clips = source(stream)
    if rng.random() < sentences and len(clips.sentences):
        k = rng.choice(clips.sentences)
        return join(stream, [(clips.take(k), clips.texts[k])], (0.0, 0.0))
    pool = SPOKEN_CORE if rng.random() < 0.75 else SPOKEN
    picked = [rng.choice(pool) for _ in range(rng.randint(1, longest))]
    return join(stream, [spoken_word(stream, clips, word) for word in picked], (0.02, 0.35))


def tone_row(stream: Stream) -> Sound:
    kinds = [
        stream.rng.choice(("low", "high", "rising", "falling"))
        for _ in range(stream.rng.randint(1, 4))
    ]
    return join(stream, [(tones.tone(stream, kind), kind) for kind in kinds], (0.1, 0.4))


def beeps(stream: Stream) -> Sound:
    """One to six equal beeps at a steady pace."""
    rng = stream.rng
    beep, count = tones.tone(stream, "beep"), rng.randint(1, 6)
    pace = rng.uniform(0.12, 0.4)
    return join(stream, [(beep, "beep")] * count, (pace, pace * 1.15))


def transcript(sound: Sound) -> str:
    return " ".join(word for _, _, word in sound.words)


def hear_words(stream: Stream, source: VoiceSource = any_voice) -> Sample:
    """Skill "hear_words"."""
    sound = speech(stream, source)
    return _sample("hear_words", stream, sound, WORDS, transcript(sound))


def hear_tones(stream: Stream) -> Sample:
    """Tones in order, or the number of beeps. Skill "hear_tones"."""
    if stream.rng.random() < 0.5:
        sound = tone_row(stream)
        return _sample("hear_tones", stream, sound, TONES, transcript(sound))
    sound = beeps(stream)
    return _sample("hear_tones", stream, sound, BEEPS, NUMBERS[len(sound.words)])


def _sample(
    skill: str, stream: Stream, sound: Sound, questions: Sequence[str], answer: str
) -> Sample:
    question = stream.rng.choice(questions)
    message = user(question, 0) if stream.rng.random() < 0.3 else user(0, question)
    detail = {"seconds": len(sound.samples) / sound.rate}
    return Sample(skill, [message], assistant(answer), (sound,), score="words", detail=detail)
