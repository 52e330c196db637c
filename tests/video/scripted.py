"""Clips in which given things happen, in every codec that questions are asked about.

The things are those of `tools.pocket.data.clips`: a script of shapes that appear, move, change
colour and vanish at known seconds, and a sound of `tools.pocket.data.sounds` beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tests.video.clips import CODECS, SOUND_CODECS, Clip, Track, animation
from tools.pocket.data.sample import Clip as Scene
from tools.pocket.data.sample import Sound

FORMATS = (*CODECS, "gif")
TYPES = {"mp4": "video/mp4", "webm": "video/webm", "avi": "video/x-msvideo", "gif": "image/gif"}


@dataclass(frozen=True)
class _Film(Clip):
    scene: Scene | None = None

    def picture(self, number: int) -> np.ndarray:
        assert self.scene is not None
        return self.scene.draw(number / self.scene.fps)


@dataclass(frozen=True)
class _Voice(Track):
    sound: Sound | None = None

    def samples(self) -> np.ndarray:
        assert self.sound is not None
        return self.sound.samples[None].astype(np.float32)


def film(scene: Scene, form: str) -> tuple[bytes, str]:
    """(file, media type) of a scene, whose sides must be even, in one of FORMATS.

    Its sound goes along; GIF has none, so there the scene must have none, too.
    """
    height, width = scene.draw(0.0).shape[:2]
    if form == "gif":
        assert scene.sound is None, "GIF has no sound"
        ends = np.round(np.arange(scene.count + 1) * 100 / scene.fps).astype(int)
        frames = [scene.draw(number / scene.fps).copy() for number in range(scene.count)]
        for number, frame in enumerate(frames):
            frame[0, 0] = 255 * (number % 2)  # Pillow would join equal frames
        return animation(frames, "GIF", (np.diff(ends) * 10).tolist()), TYPES["gif"]
    like, track = CODECS[form], None
    if scene.sound is not None:
        track = _Voice(
            len(scene.sound.samples) / scene.sound.rate,
            rate=scene.sound.rate,
            channels=1,
            codec=SOUND_CODECS[like.container],
            sound=scene.sound,
        )
    clip = _Film(
        **vars(replace(like, frames=scene.count, width=width, height=height, rate=scene.fps)),
        scene=scene,
    )
    return replace(clip, track=track).encode(), TYPES[like.container]
