"""Clips made in memory, whose frames carry their own number.

A frame is a 4 x 4 board of cells: the four corner cells tell the orientation (only the top left
one is white), the other twelve are the bits of the frame number. The number can be read back
after lossy coding, scaling and colour conversion, so a wrong frame is seen as a wrong number and
a frame on its side as a broken corner. A bar moves over the board's edges to give motion.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from PIL import Image

os.environ.setdefault("SVT_LOG", "0")  # the AV1 encoder is talkative

H264 = {"preset": "veryfast", "bf": "3", "g": "12"}
H264_X = "scenecut=0:b-pyramid=normal:ref=4"
CLOSED = H264 | {"x264-params": H264_X}
"""H.264 with B-frames used as references, a closed GOP of 12."""
OPEN = H264 | {"x264-params": H264_X + ":open-gop=1"}
"""The same with open GOPs: frames before a key frame need the GOP before."""

CORNERS = {(0, 0): 1, (0, 3): 0, (3, 0): 0, (3, 3): 0}
BITS = [(r, c) for r in range(4) for c in range(4) if (r, c) not in CORNERS]


def draw(number: int, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3]: the board of frame `number`."""
    board = np.zeros((4, 4), np.uint8)
    for cell, value in CORNERS.items():
        board[cell] = value
    for bit, cell in enumerate(BITS):
        board[cell] = number >> bit & 1
    rows = np.minimum(np.arange(height) * 4 // height, 3)
    columns = np.minimum(np.arange(width) * 4 // width, 3)
    luma = 24 + 200 * board[rows][:, columns]
    luma[:, (number * 3) % width] = 128
    return np.repeat(luma[:, :, None], 3, axis=2).astype(np.uint8)


def read(frame: np.ndarray) -> int:
    """The number of a decoded frame [height, width, 3]; -1 when it is not an upright board."""
    height, width = frame.shape[:2]
    luma = frame.astype(np.float32).mean(axis=2)
    number = 0
    for row in range(4):
        for column in range(4):
            top, bottom = (height * (4 * row + k) // 16 for k in (1, 3))
            left, right = (width * (4 * column + k) // 16 for k in (1, 3))
            value = int(np.median(luma[top : bottom + 1, left : right + 1]) > 124)
            if (row, column) in CORNERS:
                if CORNERS[row, column] != value:
                    return -1
            else:
                number |= value << BITS.index((row, column))
    return number


def numbers(frames: np.ndarray) -> list[int]:
    return [read(frame) for frame in frames]


@dataclass(frozen=True)
class Track:
    """A sound track: silence with one click, at `click` seconds of the track's own time."""

    seconds: float
    click: float | None = None
    rate: int = 48000
    channels: int = 2
    codec: str = "aac"
    start: float = 0.0

    def samples(self) -> np.ndarray:
        """float32 [channels, n]"""
        wave = np.zeros((self.channels, round(self.seconds * self.rate)), np.float32)
        if self.click is not None:
            at = round(self.click * self.rate)
            wave[:, at : at + 8] = 0.9
        return wave


@dataclass(frozen=True)
class Clip:
    frames: int = 60
    width: int = 64
    height: int = 48
    rate: Fraction | int = 30
    container: str = "mp4"
    codec: str = "libx264"
    pix_fmt: str = "yuv420p"
    options: dict[str, str] = field(default_factory=dict)
    pts: Sequence[int] | None = None  # one per frame, in units of time_base
    time_base: Fraction | None = None
    rotation: int = 0
    hflip: bool = False
    vflip: bool = False
    matrix: Sequence[int] | None = None
    track: Track | None = None
    muxing: dict[str, str] = field(default_factory=dict)

    def picture(self, number: int) -> np.ndarray:
        """uint8 [height, width, 3]: frame `number`."""
        return draw(number, self.width, self.height)

    def encode(self) -> bytes:
        target = io.BytesIO()
        with av.open(target, "w", format=self.container, options=self.muxing) as output:
            stream = output.add_stream(self.codec, rate=self.rate, options=dict(self.options))
            stream.width, stream.height, stream.pix_fmt = self.width, self.height, self.pix_fmt
            time_base = self.time_base or 1 / Fraction(self.rate)
            stream.codec_context.time_base = time_base
            if self.rotation or self.hflip or self.vflip:
                stream.set_display_rotation(self.rotation, hflip=self.hflip, vflip=self.vflip)
            if self.matrix is not None:
                stream.set_display_matrix(self.matrix)
            sound = None
            if self.track is not None:
                sound = output.add_stream(
                    self.track.codec,
                    rate=self.track.rate,
                    layout="mono" if self.track.channels == 1 else "stereo",
                )
            for number in range(self.frames):
                frame = av.VideoFrame.from_ndarray(self.picture(number), format="rgb24")
                frame = frame.reformat(format=self.pix_fmt)
                frame.pts = self.pts[number] if self.pts is not None else number
                frame.time_base = time_base
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
            if sound is not None and self.track is not None:
                mux_sound(output, sound, self.track)
        return target.getvalue()


CODECS = {
    "h264": Clip(120, options=CLOSED),
    "hevc": Clip(
        120, 96, 80, codec="libx265",
        options={"preset": "ultrafast", "x265-params": "log-level=none:keyint=24"},
    ),
    "vp9": Clip(
        120, codec="libvpx-vp9", container="webm",
        options={"deadline": "realtime", "cpu-used": "8", "g": "24"},
    ),
    "av1": Clip(
        120, 128, 96, codec="libsvtav1", options={"g": "24", "preset": "10", "crf": "20"}
    ),
    "mpeg4": Clip(120, codec="mpeg4", container="avi", options={"bf": "2", "g": "12"}),
}  # fmt: skip
"""Clips of 120 frames in the codecs that questions are asked about; GIF is `pictures`."""
SOUND_CODECS = {"webm": "libopus", "mp4": "aac", "avi": "libmp3lame"}


def mux_sound(output: av.container.OutputContainer, stream: av.AudioStream, track: Track) -> None:
    wave = track.samples()
    layout = stream.codec_context.layout.name
    for first in range(0, wave.shape[1], 1024):
        block = wave[:, first : first + 1024].T.reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block), format="flt", layout=layout)
        frame.sample_rate = track.rate
        frame.pts = first + round(track.start * track.rate)
        frame.time_base = Fraction(1, track.rate)
        output.mux(stream.encode(frame))
    output.mux(stream.encode(None))


def remux(data: bytes, container: str = "mp4", shift: Fraction | int = 0, loops: int = 1) -> bytes:
    """The packets of a clip in a new container, `shift` seconds later, several times in a row."""
    target = io.BytesIO()
    with av.open(target, "w", format=container) as output:
        with av.open(io.BytesIO(data)) as source:
            streams = [output.add_stream_from_template(stream) for stream in source.streams]
            length = Fraction(source.duration, av.time_base)
        for loop in range(loops):
            with av.open(io.BytesIO(data)) as source:
                for packet in source.demux():
                    if packet.dts is None:
                        continue
                    late = round((shift + loop * length) / packet.time_base)
                    packet.pts += late
                    packet.dts += late
                    packet.stream = streams[packet.stream_index]
                    output.mux(packet)
    return target.getvalue()


def damage(data: bytes, share: float, length: int = 2048) -> bytes:
    """The file with `length` bytes of noise at `share` of its size."""
    spoiled = bytearray(data)
    at = int(len(data) * share)
    noise = np.random.default_rng(0).integers(0, 256, length, dtype=np.uint8).tobytes()
    spoiled[at : at + length] = noise
    return bytes(spoiled[: len(data)])


def pictures(frames: int, kind: str, duration: int | list[int], size: tuple[int, int]) -> bytes:
    """An animated GIF or WebP of numbered boards; durations in ms."""
    return animation([draw(number, *size) for number in range(frames)], kind, duration)


def animation(frames: Sequence[np.ndarray], kind: str, duration: int | list[int]) -> bytes:
    """An animated GIF or WebP of uint8 [H, W, 3] frames; durations in ms."""
    images = [Image.fromarray(frame) for frame in frames]
    target = io.BytesIO()
    images[0].save(
        target, kind, save_all=True, append_images=images[1:], duration=duration, lossless=True
    )
    return target.getvalue()


def sound_file(track: Track, container: str = "wav") -> bytes:
    """A file that holds nothing but the track."""
    target = io.BytesIO()
    with av.open(target, "w", format=container) as output:
        layout = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1", 16: "hexadecagonal"}[track.channels]
        stream = output.add_stream(track.codec, rate=track.rate, layout=layout)
        mux_sound(output, stream, track)
    return target.getvalue()
