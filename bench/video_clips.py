"""Clips that the video benchmarks decode: made once, kept under `build/bench`.

720p at 30 frames per second, H.264 as x264 makes it by default but for the preset: key frames
every 250 frames or at a cut, up to three B-frames in a row of which one is a reference, CABAC,
deblocking, one slice a frame. A camera pans over textures, shapes move across, there is noise in
every pixel and a cut every 20 s, so that nothing about the content is easy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

WIDTH, HEIGHT, RATE = 1280, 720, 30
SCENE_SECONDS = 20
SEGMENT_SECONDS = 60
"""What is encoded; longer clips repeat its packets with later timestamps."""
FOLDER = Path(__file__).parent.parent / "build" / "bench"
# PyAV's own choice of threads would cut every frame into a slice for each core.
OPTIONS = {"preset": "veryfast", "crf": "24", "x264-params": "sliced-threads=0"}
NOISE_PLANES = 16


def clip(seconds: int) -> Path:
    """An mp4 of `seconds` (20, 40 or a multiple of 60), made when it is not there yet."""
    path = FOLDER / f"clip-one-slice-{seconds}.mp4"
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.mp4")
    if seconds > SEGMENT_SECONDS:
        if seconds % SEGMENT_SECONDS:
            raise ValueError(f"{seconds} s is no multiple of {SEGMENT_SECONDS} s")
        _repeat(clip(SEGMENT_SECONDS), part, seconds // SEGMENT_SECONDS)
    else:
        _encode(part, seconds)
    part.replace(path)
    return path


def _encode(path: Path, seconds: int) -> None:
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=RATE, options=OPTIONS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, planes in enumerate(_frames(seconds)):
            frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
            frame.pts = number
            frame.time_base = Fraction(1, RATE)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def _repeat(segment: Path, path: Path, loops: int) -> None:
    with av.open(str(path), "w") as output:
        with av.open(str(segment)) as source:
            stream = output.add_stream_from_template(source.streams.video[0])
        for loop in range(loops):
            with av.open(str(segment)) as source:
                for packet in source.demux(video=0):
                    if packet.dts is None:
                        continue
                    late = round(loop * SEGMENT_SECONDS / packet.time_base)
                    packet.pts += late
                    packet.dts += late
                    packet.stream = stream
                    output.mux(packet)


def _frames(seconds: int) -> Iterator[np.ndarray]:
    """uint8 [height * 3 / 2, width] planes of yuv420p, one frame after the other."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 3, (NOISE_PLANES, HEIGHT, WIDTH)).round().astype(np.int16)
    for _ in range(0, seconds, SCENE_SECONDS):
        luma = _texture(rng, HEIGHT * 2, WIDTH * 2).astype(np.int16)
        chroma = _texture(rng, HEIGHT * 2, WIDTH)
        speed = rng.integers(1, 4, 2)
        shapes = rng.integers(40, 200, (6, 2))
        for step in range(SCENE_SECONDS * RATE):
            top, left = _swing(step * speed[0], HEIGHT), _swing(step * speed[1], WIDTH)
            picture = luma[top : top + HEIGHT, left : left + WIDTH] + noise[rng.integers(16)]
            for number, (height, width) in enumerate(shapes):
                y = _swing(step * (number + 2) + 100 * number, HEIGHT - height)
                x = _swing(step * (2 * number + 3) + 200 * number, WIDTH - width)
                picture[y : y + height, x : x + width] += 30 * (number % 3 - 1) + 10
            half = chroma[top // 2 : top // 2 + HEIGHT, left // 2 : left // 2 + WIDTH // 2]
            yield np.concatenate(
                [picture.clip(0, 255).astype(np.uint8), half.reshape(HEIGHT // 2, WIDTH)]
            )


def _swing(step: int, length: int) -> int:
    """A position that goes from 0 to `length` and back."""
    return int(abs((step + length) % (2 * length) - length))


def _texture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """uint8 [height, width]: noise at many scales, the coarse ones stronger."""
    total = np.zeros((height, width), np.float32)
    for scale in (4, 16, 64, 160):
        coarse = rng.uniform(-1, 1, (height // scale + 1, width // scale + 1))
        fine = coarse.repeat(scale, 0).repeat(scale, 1)[:height, :width]
        total += (scale**0.5 * fine).astype(np.float32)
    return ((total - total.min()) * (205 / np.ptp(total)) + 25).astype(np.uint8)
