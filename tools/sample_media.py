"""Plain pictures, sounds and clips that tests and benchmarks send."""

from __future__ import annotations

import wave
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw

RATE = 24_000


def picture(shape: str, colour: str, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """One coloured shape in the middle of a light canvas of (width, height)."""
    image = Image.new("RGB", size, "#f2efe6")
    draw = ImageDraw.Draw(image)
    width, height = size
    box = (width / 2 - 36, height / 2 - 36, width / 2 + 36, height / 2 + 36)
    if shape == "square":
        draw.rectangle(box, fill=colour)
    elif shape == "circle":
        draw.ellipse(box, fill=colour)
    else:
        raise ValueError(f"shape is {shape!r}; square and circle can be drawn")
    return image


def beeps(count: int, seconds: float, pitch: float = 880.0) -> np.ndarray:
    """``count`` short tones spread over ``seconds``; float32 samples at 24 kHz."""
    sound = np.zeros(int(seconds * RATE), np.float32)
    tone = 0.4 * np.sin(2 * np.pi * pitch * np.arange(int(0.2 * RATE)) / RATE)
    for i in range(count):
        start = int((i + 0.25) * seconds / count * RATE)
        end = min(start + len(tone), len(sound))
        sound[start:end] = tone[: end - start]
    return sound


def write_wav(path: Path, samples: np.ndarray) -> None:
    """16-bit mono at 24 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def frames(seconds: float, fps: int, size: tuple[int, int] = (160, 96)) -> list[np.ndarray]:
    """A red ball rolling from left to right that turns blue half way; uint8 [h, w, 3]."""
    width, height = size
    pictures = []
    for i in range(int(seconds * fps)):
        done = i / (seconds * fps)
        image = Image.new("RGB", size, "#f2efe6")
        x = 20 + done * (width - 40)
        box = (x - 14, height / 2 - 14, x + 14, height / 2 + 14)
        ImageDraw.Draw(image).ellipse(box, fill="red" if done < 0.5 else "blue")
        pictures.append(np.asarray(image))
    return pictures


def write_clip(path: Path, pictures: list[np.ndarray], fps: int, sound: np.ndarray) -> None:
    """H.264 and AAC in an MP4."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=fps)
        video.height, video.width = pictures[0].shape[:2]
        video.pix_fmt = "yuv420p"
        audio = container.add_stream("aac", rate=RATE, layout="mono")
        for picture_ in pictures:
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture_, format="rgb24")))
        container.mux(video.encode(None))
        for at in range(0, len(sound), 1024):
            block = np.zeros((1, 1024), np.float32)
            part = sound[at : at + 1024]
            block[0, : len(part)] = part
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = RATE, at
            container.mux(audio.encode(frame))
        container.mux(audio.encode(None))
