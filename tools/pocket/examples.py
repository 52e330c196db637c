"""The sample media that the README asks about, from the generators' held-out split.

python -m tools.pocket.examples docs/media
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.pocket.data import printed, scenes
from tools.pocket.data.clip_file import encode_clip, encode_sound
from tools.pocket.data.clip_questions import watch
from tools.pocket.data.fonts import BUILTIN
from tools.pocket.data.sample import Clip, Sound, stream
from tools.pocket.data.sounds import beeps, speech

SEED = 2026
SIGN = "OMNI"
PRINT = 28.0  # pixels per em
SECONDS = 8
# Items of the streams that are pleasant to look at and that the shipped weights get right.
SCENES, SIGN_AT, WORDS, BEEPS, CLIP = (6, 3), 8, 2, 2, 19


def media() -> dict[str, bytes]:
    """File name to content: two drawn scenes, a sign, spoken words, beeps, a clip with sound."""
    first, second = (stream("heldout", "example-scene", SEED, i) for i in SCENES)
    sign, _ = printed.one_line(
        stream("heldout", "example-sign", SEED, SIGN_AT), SIGN, PRINT, PRINT + 2, (BUILTIN,)
    )
    (clip,) = watch(stream("heldout", "example-clip", SEED, CLIP), seconds=SECONDS, sound=1.0).media
    assert isinstance(clip, Clip)
    sounds: dict[str, Sound] = {
        "words.wav": speech(
            stream("heldout", "example-words", SEED, WORDS), longest=4, sentences=0.0
        ),
        "beeps.wav": beeps(stream("heldout", "example-beeps", SEED, BEEPS)),
    }
    return {
        "scene.png": scenes.picture(scenes.random_scene(first), first).encoded("PNG"),
        "other.jpg": scenes.picture(scenes.random_scene(second), second).encoded("JPEG"),
        "sign.png": sign.encoded("PNG"),
        "clip.mp4": encode_clip(clip),
    } | {name: encode_sound(sound) for name, sound in sounds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the README's sample media.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in media().items():
        (folder / name).write_bytes(content)
        print(f"{folder / name}: {len(content)} bytes")


if __name__ == "__main__":
    main()
