"""The shipped checkpoint's audio path (`make env` writes it)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from encoders.audio import load_audio_model
from encoders.checkpoint import read_config

POCKET = Path(__file__).parents[3] / "models/pocket"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pocket_encodes_stereo_sounds(dtype: str) -> None:
    model = load_audio_model(POCKET, "cpu", dtype)
    hidden = read_config(POCKET / "config.json")["hidden_size"]
    generator = np.random.default_rng(0)
    sounds = [
        0.1 * generator.standard_normal((2, seconds * 44_100), dtype=np.float32)
        for seconds in (1, 10)
    ]
    rows = model.encode([model.preprocess(sound, 44_100) for sound in sounds])
    assert [tuple(r.shape) for r in rows] == [(7, hidden), (63, hidden)]
    assert model.hidden == hidden
    assert all(r.float().std() > 0 and r.isfinite().all() for r in rows)
