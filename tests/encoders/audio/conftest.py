from __future__ import annotations

from pathlib import Path

import pytest
from audio_tiny import write_checkpoint

from encoders.audio import load_audio_model
from encoders.audio.model import AudioModel


@pytest.fixture(scope="session")
def tiny_audio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a small random audio checkpoint."""
    return write_checkpoint(tmp_path_factory.mktemp("audio"))


@pytest.fixture(scope="session")
def exact_model(tiny_audio: Path) -> AudioModel:
    """The small model in float64, where rounding cannot change which code is nearest."""
    return load_audio_model(tiny_audio, "cpu", "float64")
