"""The classes that `app/` deploys. Importing this module imports no torch."""

from __future__ import annotations

from encoders.audio_encoder import AudioEncoder
from encoders.image_encoder import ImageEncoder

__all__ = ["AudioEncoder", "ImageEncoder"]
