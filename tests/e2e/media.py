"""Content parts made by the tests themselves."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from tools.sample_media import beeps, frames, picture, write_clip, write_wav

Part = dict[str, Any]


def text(words: str) -> Part:
    return {"type": "text", "text": words}


def image_bytes(
    shape: str, colour: str, kind: str = "PNG", size: tuple[int, int] = (160, 120)
) -> bytes:
    file = io.BytesIO()
    picture(shape, colour, size).save(file, kind)
    return file.getvalue()


def image(shape: str, colour: str, kind: str = "PNG", size: tuple[int, int] = (160, 120)) -> Part:
    return {
        "type": "image_url",
        "image_url": {
            "url": data_uri(image_bytes(shape, colour, kind, size), f"image/{kind.lower()}")
        },
    }


def sound(count: int, folder: Path) -> Part:
    write_wav(folder / "sound.wav", beeps(count, 2.0))
    data = base64.b64encode((folder / "sound.wav").read_bytes()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def clip(folder: Path, seconds: float = 4.0, reverse: bool = False) -> Part:
    """A ball rolling right (or left), with two beeps."""
    pictures = frames(seconds, 12)
    if reverse:
        pictures = pictures[::-1]
    write_clip(folder / "clip.mp4", pictures, 12, beeps(2, seconds))
    return {
        "type": "video_url",
        "video_url": {"url": data_uri((folder / "clip.mp4").read_bytes(), "video/mp4")},
    }


def data_uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64," + base64.b64encode(data).decode()
