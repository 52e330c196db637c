"""Clips that Pillow reads and libav does not: animated WebP, sequences of pictures."""

from __future__ import annotations

from video.clip import Allocate, Clip, SizeOf
from video.decode_sequence import decode_sequence
from video.sampling import SamplingOptions
from video.sequence import is_sequence
from video.source import Source
from video.webp import decode_webp, is_webp


def decode_with_pillow(
    source: Source, options: SamplingOptions, size_of: SizeOf | None, allocate: Allocate
) -> Clip | None:
    """The clip, as `decode_clip` gives it; None for everything that is libav's."""
    if is_sequence(source.data):
        return decode_sequence(source, options, size_of, allocate)
    if is_webp(source.data):
        return decode_webp(source, options, size_of, allocate)
    return None
