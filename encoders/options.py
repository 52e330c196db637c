"""Options of the encoder replicas, checked at construction. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from encoders.store.options import StoreOptions

DTYPES = ("float32", "bfloat16", "float16")
# The vision tower's and the audio tokenizer's own words, repeated so that this module stays light.
SINK_FORMS = ("softmax_column", "first_key_bias")
AUDIO_ATTENTION_FORMS = ("causal_local", "bidirectional")


@dataclass(frozen=True)
class EncoderOptions:
    """What both encoders have.

    `device`, `dtype`: where the model runs and in which number type. `max_batch_items`,
    `max_wait_ms`: bounds of a batch (see `BatchLimits`). `warm_up`: run once before ready, so that
    the first request costs the same as the hundredth. `cache_bytes`: finished embeddings kept in
    the replica, 0 = none. `queue_timeout_s`: longest wait of an item for its preparation and
    forward pass, in seconds. `store`: the node's store, which takes the place of that cache.
    """

    device: str = "cpu"
    dtype: str = "float32"
    max_batch_items: int = 16
    max_wait_ms: float = 2.0
    warm_up: bool = True
    cache_bytes: int = 0
    queue_timeout_s: float = 300.0
    store: StoreOptions | None = None

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _at_least("max_batch_items", self.max_batch_items, 1)
        _at_least("cache_bytes", self.cache_bytes, 0)
        if not 0 <= self.max_wait_ms <= 1000:
            raise ValueError(f"max_wait_ms must be within 0..1000, got {self.max_wait_ms}")
        if not self.queue_timeout_s > 0:
            raise ValueError(f"queue_timeout_s must be above 0, got {self.queue_timeout_s}")

    @classmethod
    def of(cls, given: Mapping[str, Any] | EncoderOptions | None) -> Self:
        """Options from a settings section; what concerns the deployment alone is left aside."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping | None):
            raise TypeError(f"expected {cls.__name__} or a mapping, got {type(given).__name__}")
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in (given or {}).items() if name in names})


@dataclass(frozen=True)
class ImageEncoderOptions(EncoderOptions):
    """`max_pixels`: pixels of an image as sent. `decode_threads`: images decoded and pre-processed
    at once. `max_batch_patches`: patches in one forward pass. `sink_form`: see `VisionTower`.
    """

    max_pixels: int = 64_000_000
    decode_threads: int = 1
    max_batch_patches: int = 16_384
    sink_form: str = "softmax_column"

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("max_pixels", self.max_pixels, 1)
        _at_least("decode_threads", self.decode_threads, 1)
        _at_least("max_batch_patches", self.max_batch_patches, 1)
        _one_of("sink_form", self.sink_form, SINK_FORMS)


@dataclass(frozen=True)
class AudioEncoderOptions(EncoderOptions):
    """`max_seconds`: longest sound. `mel_threads`: sounds pre-processed at once.
    `max_batch_frames`: mel frames in one forward pass. `attention`: see `encoders.audio.options`.
    """

    max_seconds: float = 600.0
    mel_threads: int = 1
    max_batch_frames: int = 24_000
    attention: str = "causal_local"

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("mel_threads", self.mel_threads, 1)
        _at_least("max_batch_frames", self.max_batch_frames, 1)
        _one_of("attention", self.attention, AUDIO_ATTENTION_FORMS)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
