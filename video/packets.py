"""Reading the coded packets of one stream: all headers, or ranges by number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import numpy as np

from video.errors import MediaError
from video.index import MISSING, PacketIndex
from video.source import Source

MAX_ERRORS = 64
"""Read errors in one pass after which the rest of the file is given up."""

SEEKABLE = ("mov", "matroska")
"""Demuxers that seek by an index of their own. The others are read through: without decoding that
runs at memory speed, and it is exact."""

SEEK_BYTES = 1 << 20
"""Skipping fewer bytes than this is done by reading on."""


def demux(container: Any, stream: Any, source: Source) -> Iterator[Any]:
    """The non-empty packets of one stream; goes on after a damaged spot (case 39)."""
    for other in container.streams:
        if other.index != stream.index:
            other.discard = av.stream.Discard.all
    packets = container.demux(stream)
    errors = 0
    while True:
        try:
            packet = next(packets, None)
        except av.error.FFmpegError:
            errors += 1
            if errors > MAX_ERRORS:
                return
            packets = container.demux(stream)
            continue
        except IndexError:  # PyAV at the end of a file in which streams turned up midway
            return
        if packet is None:
            return
        source.budget.check()
        if packet.size:  # PyAV ends with an empty packet, and an empty one would flush a decoder
            yield packet


def read_index(source: Source, stream: int) -> PacketIndex:
    """Reads every packet's header fields; nothing is decoded."""
    rows: list[tuple[int, ...]] = []
    with source.open() as container:
        for packet in demux(container, container.streams[stream], source):
            rows.append(
                (
                    MISSING if packet.pts is None else packet.pts,
                    MISSING if packet.dts is None else packet.dts,
                    packet.duration or 0,
                    -1 if packet.pos is None else packet.pos,
                    packet.size,
                    packet.is_keyframe,
                    packet.is_discard,
                )
            )
            if len(rows) > source.limits.packets:
                raise MediaError(f"the video has more than {source.limits.packets} packets")
    pts, dts, duration, position, size, key, discard = np.array(rows, np.int64).reshape(-1, 7).T
    return PacketIndex(pts, dts, duration, position, size, key.astype(bool), discard.astype(bool))


def seeks(container: Any) -> bool:
    """Whether seeking in this container leads where it should."""
    return container.format.name.split(",")[0] in SEEKABLE


class PacketReader:
    """Reads ranges of packets by number, in any order; cheapest when they ascend.

    Seeking is a hint only: the packet found is recognised by (pts, position, size), and when it is
    not where it should be the stream is read through from the start instead.
    """

    def __init__(self, source: Source, stream: int, index: PacketIndex) -> None:
        self._source = source
        self._stream_number = stream
        self._index = index
        self._next = 0
        self._open()

    def _open(self) -> None:
        self._manager = self._source.open()
        self._container = self._manager.__enter__()
        self.stream = self._container.streams[self._stream_number]
        self._rewind()

    def _rewind(self) -> None:
        self._packets = demux(self._container, self.stream, self._source)
        self._next = 0

    def close(self) -> None:
        self._manager.__exit__(None, None, None)

    def __enter__(self) -> PacketReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """(number, packet) for first..last inclusive. `first` should be a key packet."""
        skipped = int(self._index.size[self._next : first].sum())
        far = first < self._next or skipped > SEEK_BYTES
        pending = self._seek(first) if far and self._can_seek() else None
        if pending is None and first < self._next:
            self.close()
            self._open()
        if pending is not None:
            yield first, pending
        while self._next <= last:
            number = self._next
            packet = next(self._packets, None)
            if packet is None:
                return
            self._next += 1
            if number >= first:
                yield number, packet

    def _can_seek(self) -> bool:
        return seeks(self._container)

    def _identity(self, number: int) -> tuple[int, int, int]:
        index = self._index
        return int(index.pts[number]), int(index.position[number]), int(index.size[number])

    def _seek(self, number: int) -> Any | None:
        """The packet `number`, with the reader placed right behind it; None when not found.

        A failed seek leaves the reader at the end, so that the next read starts over.
        """
        wanted = self._identity(number)
        for tick in {int(self._index.pts[number]), int(self._index.dts[number])} - {int(MISSING)}:
            try:
                self._container.seek(tick, stream=self.stream, backward=True)
            except av.error.FFmpegError:
                continue
            self._packets = demux(self._container, self.stream, self._source)
            packet = next(self._packets, None)
            if packet is not None and (packet.pts, packet.pos, packet.size) == wanted:
                self._next = number + 1
                return packet
        self._next = len(self._index) + 1
        return None
