"""The scripted clips: what decodes is what was drawn, when it was drawn, in every codec."""

from __future__ import annotations

import numpy as np
import pytest

from tests.video.scripted import FORMATS, film
from tools.pocket.data.clips import clip_of, random_script
from tools.pocket.data.sample import Clip, Sound, stream
from video.decode import decode_clip
from video.sampling import SamplingOptions
from video.source import Source

RATE, FPS, SECONDS = 24_000, 6, 5


def scene(sound: bool) -> Clip:
    """Things that happen in 5 s, without noise over them, and a tone from 3 s to 4 s."""
    streams = (stream("heldout", "codecs", 0, index) for index in range(100))
    scripts = (random_script(source, np.arange(10) / 2) for source in streams)
    script = next(script for script in scripts if len(script.events) == 3 and not script.grain[0])
    at = np.arange(SECONDS * RATE) / RATE
    tone = np.where((at >= 3) & (at < 4), 0.5 * np.sin(2 * np.pi * 440 * at), 0)
    return clip_of(script, SECONDS, FPS, Sound(tone.astype(np.float32), RATE) if sound else None)


# A GIF has no sound.
KINDS = [
    (form, sound) for form in FORMATS for sound in (False, True) if not (form == "gif" and sound)
]


@pytest.mark.parametrize(("form", "sound"), KINDS)
def test_what_decodes_is_what_was_drawn(form: str, sound: bool) -> None:
    clip = scene(sound)
    data, _ = film(clip, form)
    options = SamplingOptions(fps=2.0)
    decoded = decode_clip(Source(data), options)
    times = clip.times(options)
    assert np.abs(decoded.times - times).max() < 0.02
    drawn = clip.frames(times).astype(int)
    errors = np.abs(decoded.frames.astype(int)[:, None] - drawn[None]).mean(axis=(2, 3, 4))
    assert errors.diagonal().max() < 12
    # Where the scene changes, a frame is most like its own moment.
    changed = np.diff(drawn, axis=0).any(axis=(1, 2, 3))
    assert changed.sum() == 3
    for before in np.flatnonzero(changed):
        assert errors[before, before] < errors[before, before + 1]
        assert errors[before + 1, before + 1] < errors[before + 1, before]
    if not sound:
        assert decoded.sound is None
        return
    assert decoded.sound is not None
    loud = np.flatnonzero(np.abs(decoded.sound.samples[0]) > 0.2) / decoded.sound.rate
    assert abs(loud[0] - 3) < 0.1
    assert abs(loud[-1] - 4) < 0.1
