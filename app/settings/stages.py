"""Settings of the encoder and video stages. A null takes the checkpoint's own value."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.settings.base import GIB, MIB, Device, Dtype, Scaling
from app.settings.encoders import EncoderSettings


class ImageSettings(EncoderSettings):
    """The image encoder: decoding limits, device and batches."""

    device: Device
    dtype: Dtype = Field(description="Number type of the vision tower")
    max_pixels: int = Field(
        default=64_000_000,
        ge=1024,
        le=1_000_000_000,
        description="Pixels of an image as sent; larger ones are refused from their header",
    )
    resize_min_pixels: int | None = Field(
        default=None, ge=1024, le=1_000_000_000, description="Fewest pixels after the resize"
    )
    resize_max_pixels: int | None = Field(
        default=None,
        ge=1024,
        le=1_000_000_000,
        description="Most pixels after the resize (1024 pixels make one token of MiMo-V2.5)",
    )
    sink_form: Literal["softmax_column", "first_key_bias"] = Field(
        default="softmax_column", description="How the vision tower's attention sinks are applied"
    )
    warm_up: bool = Field(default=True, description="Run the tower once before ready")
    decode_threads: int = Field(default=1, ge=1, le=256, description="Threads that decode images")
    max_batch_patches: int = Field(
        default=16_384, ge=32, le=4_194_304, description="Patches in one forward pass"
    )
    max_batch_items: int = Field(
        default=16, ge=1, le=4096, description="Images in one forward pass"
    )


class AudioSettings(EncoderSettings):
    """The audio encoder: limits, device and batches."""

    device: Device
    dtype: Dtype = Field(description="Number type of the audio tokenizer and encoder")
    max_seconds: float = Field(
        default=600.0, gt=0, le=86_400, description="Longest sound in seconds"
    )
    attention: Literal["causal_local", "bidirectional"] = Field(
        default="causal_local",
        description="Mask of the audio tokenizer: its own configuration's, or SGLang 0.5.23's",
    )
    warm_up: bool = Field(default=True, description="Run the encoder once before ready")
    mel_threads: int = Field(
        default=1, ge=1, le=256, description="Threads that resample and transform sounds"
    )
    max_batch_frames: int = Field(
        default=24_000, ge=16, le=4_194_304, description="Mel frames in one forward pass"
    )
    max_batch_items: int = Field(default=16, ge=1, le=4096, description="Sounds in one pass")


class VideoSettings(Scaling):
    """The video decoder: how clips are sampled, limits and workers."""

    fps: float | None = Field(
        default=None, gt=0, le=240, description="Frames sampled per second of a clip"
    )
    min_frames: int | None = Field(
        default=None, ge=1, le=100_000, description="Fewest frames sampled from a clip"
    )
    max_frames: int | None = Field(
        default=None, ge=2, le=100_000, description="Most frames sampled from a clip"
    )
    min_pixels: int | None = Field(
        default=None, ge=1024, le=1_000_000_000, description="Fewest pixels of a sampled frame"
    )
    max_pixels: int | None = Field(
        default=None, ge=1024, le=1_000_000_000, description="Most pixels of a sampled frame"
    )
    total_max_pixels: int | None = Field(
        default=None, ge=1024, le=100_000_000_000, description="Pixels of all sampled frames"
    )
    request_max_fps: float = Field(
        default=30.0, gt=0, le=240, description="Highest fps that a request may ask for"
    )
    request_max_frames: int = Field(
        default=3600, ge=2, le=100_000, description="Most frames that a request may ask for"
    )
    max_file_bytes: int = Field(
        default=GIB, ge=1024, le=64 * GIB, description="Bytes of a clip or sound file"
    )
    max_duration_s: float = Field(
        default=7200.0, gt=0, le=604_800, description="Longest clip or sound in seconds"
    )
    max_frame_pixels: int = Field(
        default=40_000_000, ge=1024, le=1_000_000_000, description="Pixels of a frame as sent"
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Clips, or parts of one, decoded at once in a replica, a process each; null is "
        "one for each core, at most 4",
    )
    max_waiting: int = Field(
        default=64, ge=0, le=100_000, description="Files that may wait for a worker"
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Threads on which one clip is decoded, a chunk each; null is one for each core",
    )
    part_frames: int = Field(
        default=48,
        ge=2,
        le=100_000,
        description="Frames of a part of a long clip; clips with no more are decoded at once",
    )
    parts_in_work: int = Field(
        default=4,
        ge=1,
        le=1024,
        description="Parts of one clip that are decoded or encoded at once; bounds its memory",
    )
    memory_bytes: int = Field(
        default=2 * GIB, ge=16 * MIB, le=1024 * GIB, description="Decoded frames held per clip"
    )
    timeout_s: float = Field(
        default=300.0, gt=0, le=86_400, description="Seconds that one decode may take"
    )
