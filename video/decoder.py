"""One libav decoder fed with ranges of packets."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import av

from video.disposable import disposable_rule
from video.index import PacketIndex
from video.limits import Limits
from video.packets import PacketReader
from video.source import Source

MAX_REORDER = 16
"""The most that H.264 allows; libav aborts the process above it (spoiled timestamps ask for it)."""


class RangeDecoder:
    """Decodes packet ranges, each from a clean state, so that a range's frames do not depend on
    what was decoded before. One codec thread: parallelism comes from running several of these."""

    def __init__(self, source: Source, stream: int, index: PacketIndex, reorder: int) -> None:
        self._reader = PacketReader(source, stream, index)
        self._codec = configure(self._reader.stream.codec_context, source.limits)
        self._reorder = reorder
        self._disposable = disposable_rule(self._codec.name, self._codec.extradata)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> RangeDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def frames(self, first: int, last: int, wanted: Container[int] | None = None) -> Iterator[Any]:
        """The av.VideoFrames that packets first..last give, in order of presentation.

        wanted: presentation times in ticks; of packets at other times, those that no other frame
        is predicted from are left out. None: all frames are wanted.

        Packets that cannot be decoded are skipped; what the decoder makes of the rest is yielded.
        """
        if self._codec.is_open:
            self._codec.flush_buffers()
        if self._reorder and self._codec.name == "h264":
            # A flushed H.264 decoder guesses this anew and drops frames while it learns.
            depth = min(self._reorder, MAX_REORDER)
            self._codec.reorder_depth = max(depth, self._codec.reorder_depth)
        for _, packet in self._reader.read(first, last):
            if wanted is None or not self._can_drop(packet, wanted):
                yield from self._decode(packet)
        yield from self._decode(None)

    def _can_drop(self, packet: Any, wanted: Container[int]) -> bool:
        if self._disposable is None or packet.pts is None or packet.pts in wanted:
            return False
        return self._disposable(memoryview(packet))

    def _decode(self, packet: Any | None) -> list[Any]:
        try:
            return self._codec.decode(packet)
        except av.error.FFmpegError:
            return []


def configure(codec: Any, limits: Limits) -> Any:
    """Sets a decoder up before it opens."""
    codec.thread_count = 1
    codec.thread_type = "NONE"
    codec.options = {"max_pixels": str(limits.frame_pixels)}
    return codec
