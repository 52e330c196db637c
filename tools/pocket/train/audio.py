"""Trains the audio tokenizer with its residual codebooks.

python -m tools.pocket.train.audio [--hours H] [--decay MINUTES] [--state FILE]

Needs the recorded voices (python -m tools.pocket.data.voices).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from encoders.audio.mel import MelFrontEnd
from tools.pocket.data import sounds
from tools.pocket.data.sample import Sound, Split, stream
from tools.pocket.spec import PocketSpec
from tools.pocket.train import run
from tools.pocket.train.audio_model import VOCABULARY, AudioTrainer
from tools.pocket.train.precision import autocast

BATCH = 20
GROUP = 4
SEED = 1
CODES_FROM = 150  # steps without quantisation first
# Up to a step, so many words at most: CTC finds its alignment soonest on one or two.
LONGEST = ((400, 2), (700, 4))
WEIGHTS = {"mel": 1.0, "ctc": 0.5, "commitment": 0.25}
HELDOUT = 120


def sound_of(
    split: Split,
    index: int,
    source: sounds.VoiceSource = sounds.any_voice,
    longest: int = 6,
) -> Sound:
    """One in five is tones or beeps, the others are speech of up to ``longest`` words."""
    item = stream(split, "audio", SEED, index)
    if index % 5 < 4:
        return sounds.speech(item, source, longest, 0.2 if longest == 6 else 0.0)
    return sounds.tone_row(item) if item.rng.random() < 0.6 else sounds.beeps(item)


def target(sound: Sound) -> list[int]:
    words = sounds.transcript(sound).split()
    return [VOCABULARY.index(word) + 1 for word in words]


def edits(found: Sequence[str], wanted: Sequence[str]) -> int:
    """Edit distance between two word lists."""
    row = list(range(len(wanted) + 1))
    for i, a in enumerate(found, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(wanted, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


def padded(batch: list[Sound]) -> list[Sound]:
    """The sounds sorted by length, each few brought to one length by silence at the end: equal
    neighbours share one attention call."""
    batch = sorted(batch, key=lambda sound: len(sound.samples))
    found = []
    for first in range(0, len(batch), GROUP):
        group = batch[first : first + GROUP]
        longest = len(group[-1].samples)
        for sound in group:
            silence = longest - len(sound.samples)
            found.append(replace(sound, samples=np.pad(sound.samples, (0, silence))))
    return found


class AudioJob:
    """One step's work and the held-out measure."""

    def __init__(self, spec: PocketSpec, source: sounds.VoiceSource = sounds.any_voice) -> None:
        torch.manual_seed(SEED)
        self.trainer = AudioTrainer(spec)
        config = self.trainer.tokenizer.config
        self.front_end = MelFrontEnd(config, torch.device("cpu"))
        self.source = source
        self.heldout: list[tuple[torch.Tensor, list[str], bool]] = []

    def mel(self, sound: Sound) -> torch.Tensor:
        lengths = self.trainer.tokenizer.lengths
        return self.front_end(sound.samples[None], sound.rate, lengths.min_samples)

    def step(self, number: int, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        longest = next((words for stop, words in LONGEST if number < stop), 6)
        indices = range(number * BATCH, (number + 1) * BATCH)
        batch = padded([sound_of("train", i, self.source, longest) for i in indices])
        mels = [self.mel(sound) for sound in batch]
        if number >= CODES_FROM and not self.trainer.codes.filled.item():
            with torch.no_grad():
                self.trainer.codes.fill(self.trainer.latents(mels)[0])
        # At these lengths the plain kernel's backward is several times faster than the fused one's.
        with autocast(), sdpa_kernel(SDPBackend.MATH):
            losses = self.trainer.losses(mels, [target(sound) for sound in batch])
        total = sum(WEIGHTS[name] * loss for name, loss in losses.items())
        assert isinstance(total, torch.Tensor)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.trainer.parameters(), 1.0)
        optimizer.step()
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        return {**values, "norm": float(norm), "items": len(batch)}

    def state(self) -> dict[str, Any]:
        return {"model": self.trainer.state_dict()}

    def restore(self, value: dict[str, Any]) -> None:
        self.trainer.load_state_dict(value["model"])

    def evaluate(self) -> dict[str, float]:
        """Word accuracy (1 - errors / words) on held-out voices and on tones; codes in use."""
        if not self.heldout:
            for index in range(HELDOUT):
                sound = sound_of("heldout", index, self.source)
                words = sounds.transcript(sound).split()
                self.heldout.append((self.mel(sound), words, index % 5 < 4))
        self.trainer.eval()
        found = self.trainer.transcribe([mel for mel, _, _ in self.heldout])
        self.trainer.train()
        figures = {}
        for name, wanted in (("words", True), ("tones", False)):
            pairs = [
                (got, words)
                for got, (_, words, spoken) in zip(found, self.heldout, strict=True)
                if spoken is wanted
            ]
            wrong = sum(edits(got, words) for got, words in pairs)
            figures[name] = 1.0 - wrong / sum(len(words) for _, words in pairs)
        return {**figures, "codes": self.trainer.codes.usage}


def main() -> None:
    run.tune_process()
    options = run.arguments("Train the audio tokenizer.", "audio", 1e-3)
    job = AudioJob(PocketSpec())
    optimizer = run.optimizer([job.trainer], options.rate)
    run.train(job, optimizer, options)


if __name__ == "__main__":
    main()
