"""How much one file may ask for. Everything here is checked before pixels are decoded."""

from __future__ import annotations

from dataclasses import dataclass, fields

from video.errors import MediaError


@dataclass(frozen=True)
class Limits:
    bytes: int = 1 << 30
    """Size of the file."""
    seconds: float = 7200.0
    """Length of the picture track."""
    frame_pixels: int = 8192 * 4352
    """Pixels of one source frame."""
    streams: int = 64
    """Streams in the container."""
    packets: int = 2_000_000
    """Packets of the picture track."""
    sampled_frames: int = 3600
    """Frames handed on."""
    output_pixels: int = 1 << 29
    """Pixels of all frames handed on, after scaling (three bytes each). The family's own budget
    is 2 * 268,435,456."""
    sound_seconds: float = 7200.0
    """Length of a sound track."""
    sound_bytes: int = 3 << 29
    """Bytes of a decoded sound track (four per sample and channel)."""
    decode_seconds: float = 300.0
    """Time spent on one file, waiting in the queue not counted."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int, float) if field.type == "float" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
                raise ValueError(f"limits.{field.name} = {value!r}: must be a positive number")

    def check_bytes(self, size: int) -> None:
        if size > self.bytes:
            raise MediaError(f"the file has {size} bytes, more than the limit of {self.bytes}")
