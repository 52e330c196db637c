"""espeak-ng voices, and a cache of spoken clips outside the repository.

python -m tools.pocket.data.voices [--cache DIR]

One file for each voice: ``VOICE.npz`` with int16 samples of all its clips end to end at 24 kHz,
clip boundaries, and each clip's text.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from tools.pocket.data.espeak import synthesise
from tools.pocket.data.sample import Split, Stream, stream
from tools.pocket.data.words import COLOURS, DIGITS, SHAPES, SIZES, SPOKEN, SPOKEN_CORE

RATE = 24_000
CACHE = Path(os.environ.get("OMNISERVE_POCKET_CACHE", "~/.cache/omniserve-pocket")).expanduser()
TAKES: dict[Split, int] = {"train": 8, "heldout": 3}  # clips of each word for each voice
# Words per minute and pitch (0 to 99) of a clip. Training goes past what is asked for.
SPEEDS: dict[Split, tuple[int, int]] = {"train": (90, 230), "heldout": (110, 210)}
PITCHES: dict[Split, tuple[int, int]] = {"train": (10, 95), "heldout": (25, 75)}
SENTENCES = 60

ACCENTS = (
    "en-us",
    "en-gb",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-029",
    "en-gb-x-gbclan",
    "en-us-nyc",
)
_TRAIN = (
    *("m1", "m2", "m3", "m5", "m6", "m7", "m8", "f1", "f2", "f4", "f5", "adam", "Alex", "Andrea"),
    *("Annie", "belinda", "benjamin", "boris", "caleb", "Denis", "Diogo", "ed", "edward", "Gene"),
    *("gustave", "Hugo", "iven", "jacky", "linda", "marcelo", "Marco", "max", "michael", "miguel"),
    *("norbert", "pablo", "paul", "pedro", "rob", "robert", "steph", "victor", "zac", "klatt2"),
    *("Gene2", "Henrique", "Mario", "Mike", "Nguyen", "Reed", "Storm", "announcer", "antonio"),
    *("aunty", "edward2", "grandma", "grandpa", "ian", "iven2", "iven3", "kaukovalta", "klatt"),
    *("klatt3", "klatt4", "klatt5", "klatt6", "mike2", "sandro", "shelby", "steph2", "steph3"),
)
SPOKEN_IN: dict[Split, tuple[int, ...]] = {"train": (0, 3), "heldout": (0,)}  # accents, in turn
_HELDOUT = ("m4", "f3", "Alicia", "Andy", "david", "john", "Lee", "Michel", "quincy", "travis")


def voice_names(split: Split) -> tuple[str, ...]:
    """Voices of a split: an accent and a variant each; no variant is in both splits."""
    variants = _TRAIN if split == "train" else _HELDOUT
    return tuple(
        f"{ACCENTS[(i + turn) % len(ACCENTS)]}+{v}"
        for turn in SPOKEN_IN[split]
        for i, v in enumerate(variants)
    )


@dataclass(frozen=True)
class VoiceClips:
    """The clips of one voice: ``samples`` int16, clip i is ``edges[i]``..``edges[i + 1]``.

    ``pace`` plays them faster (above 1) or slower, as a tape does: pitch and timbre change too.
    """

    samples: np.ndarray
    edges: np.ndarray
    texts: tuple[str, ...]
    pace: float = 1.0

    def take(self, i: int) -> np.ndarray:
        """float32 [n] at 24 kHz."""
        clip = self.samples[self.edges[i] : self.edges[i + 1]].astype(np.float32) / 32768.0
        if self.pace == 1.0:
            return clip
        at = np.arange(0.0, len(clip) - 1, self.pace)
        return np.interp(at, np.arange(len(clip)), clip).astype(np.float32)

    @cached_property
    def by_text(self) -> dict[str, list[int]]:
        """Text to the indices of its clips."""
        found: dict[str, list[int]] = {}
        for i, text in enumerate(self.texts):
            found.setdefault(text, []).append(i)
        return found

    @cached_property
    def sentences(self) -> list[int]:
        """Indices of the clips that are sentences."""
        return [i for i, text in enumerate(self.texts) if " " in text]


def sentence(rng_stream: Stream) -> str:
    """A short sentence of words in ``SPOKEN``."""
    rng = rng_stream.rng
    thing = f"the {rng.choice(COLOURS)} {rng.choice(SHAPES)}"
    forms = (
        f"{thing} is on the {rng.choice(('left', 'right', 'top', 'bottom'))}",
        f"{thing} is {rng.choice(SIZES)}",
        " and ".join(f"{rng.choice(DIGITS)} {rng.choice(COLOURS)}" for _ in range(2)),
        f"a {rng.choice(SIZES)} {rng.choice(COLOURS)} {rng.choice(SHAPES)}",
        " ".join(rng.choice(SPOKEN_CORE) for _ in range(rng.randint(2, 4))),
        f"hello {rng.choice(COLOURS)} {rng.choice(SHAPES)}",
        f"{rng.choice(('yes', 'no'))} the {rng.choice(SHAPES)} is {rng.choice(COLOURS)}",
    )
    return rng.choice(forms)


def speak(text: str, voice: str, speed: int, pitch: int) -> np.ndarray:
    """int16 [n] at 24 kHz, silence trimmed. Raises ``ValueError`` for an unknown voice."""
    samples, rate = synthesise(text, voice, speed, pitch)
    return _trim(_resample(samples.astype(np.float32), rate)).astype(np.int16)


def _resample(samples: np.ndarray, rate: int) -> np.ndarray:
    import torch

    from encoders.audio.resample import resample

    return resample(torch.from_numpy(samples / 32768.0), rate, RATE).numpy() * 32767.0


def _trim(samples: np.ndarray) -> np.ndarray:
    loud = np.flatnonzero(np.abs(samples) > 200)
    if not loud.size:
        return samples
    edge = RATE // 100
    return np.clip(samples[max(loud[0] - edge, 0) : loud[-1] + edge], -32768, 32767)


def record(voice: str, split: Split, seed: int = 0) -> VoiceClips:
    """Speak all words and some sentences with one voice."""
    source = stream("train", f"voice/{voice}", seed, 0)
    rng = source.rng
    texts = [word for word in SPOKEN for _ in range(TAKES[split])]
    texts += [sentence(source.fork(str(i))) for i in range(SENTENCES)]
    speeds, pitches = SPEEDS[split], PITCHES[split]
    clips = [speak(text, voice, rng.randint(*speeds), rng.randint(*pitches)) for text in texts]
    edges = np.cumsum([0, *(len(clip) for clip in clips)])
    return VoiceClips(np.concatenate(clips), edges, tuple(texts))


@lru_cache(maxsize=256)
def load(voice: str, cache: Path = CACHE) -> VoiceClips:
    """The recorded clips of a voice; spoken anew, which takes seconds, where no file has them."""
    path = cache / "voices" / f"{voice}.npz"
    if not path.is_file():
        return record(voice, "heldout" if voice in voice_names("heldout") else "train")
    with np.load(path) as file:
        return VoiceClips(file["samples"], file["edges"], tuple(file["texts"].tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the voices of the pocket model.")
    parser.add_argument("--cache", type=Path, default=CACHE)
    folder = parser.parse_args().cache / "voices"
    folder.mkdir(parents=True, exist_ok=True)
    voices = [(v, split) for split in TAKES for v in voice_names(split)]
    for number, (voice, split) in enumerate(voices, start=1):
        path = folder / f"{voice}.npz"
        if not path.is_file():
            clips = record(voice, split)
            partial = path.with_suffix(".part.npz")
            np.savez(partial, samples=clips.samples, edges=clips.edges, texts=clips.texts)
            partial.replace(path)
            print(f"{number}/{len(voices)} {voice} {len(clips.samples) / RATE:.0f} s", flush=True)


if __name__ == "__main__":
    main()
