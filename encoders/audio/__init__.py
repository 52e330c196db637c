"""The audio path: samples to embedding rows (`load_audio_model`).

Importing this package does not import torch; loading a model does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from encoders.audio.model import AudioModel
    from encoders.audio.options import AudioOptions


def load_audio_model(
    checkpoint_dir: str | Path,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    options: Mapping[str, Any] | AudioOptions | None = None,
) -> AudioModel:
    """See `encoders.audio.load.load_audio_model`."""
    from encoders.audio import load

    return load.load_audio_model(checkpoint_dir, device, dtype, options)
