"""Reading the coded packets of one stream: all headers, or ranges by number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import numpy as np

from video.errors import MediaError
from video.index import MISSING, PacketIndex
from video.mp4_index import tabled_index
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
    """Every packet's header fields; nothing is decoded."""
    tabled = tabled_index(source, stream, lambda opened, track: demux(opened, track, source))
    return _read_through(source, stream) if tabled is None else tabled


def _read_through(source: Source, stream: int) -> PacketIndex:
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

    Seeking is a hint only: the packet found is recognised by (pts, position, size). It may come
    before the wanted one (edit lists lead libav astray); when it is behind, or none of the index,
    the stream is read through from the start instead.
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
        pending = self._seek(first) if far and seeks(self._container) else None
        if pending is None and first < self._next:
            self.close()
            self._open()
        if pending is not None and self._next > first:
            yield first, pending
        while self._next <= last:
            number = self._next
            packet = next(self._packets, None)
            if packet is None:
                return
            self._next += 1
            if number >= first:
                yield number, packet

    def _seek(self, number: int) -> Any | None:
        """A packet at or before `number`, with the reader placed right behind it; None when the
        seek led anywhere else.

        A failed seek leaves the reader at the end, so that the next read starts over.
        """
        index = self._index
        for tick in {int(index.pts[number]), int(index.dts[number])} - {int(MISSING)}:
            try:
                self._container.seek(tick, stream=self.stream, backward=True)
            except av.error.FFmpegError:
                continue
            self._packets = demux(self._container, self.stream, self._source)
            packet = next(self._packets, None)
            found = None if packet is None else self._number(packet)
            if found is not None and found <= number:
                self._next = found + 1
                return packet
        self._next = len(self._index) + 1
        return None

    def _number(self, packet: Any) -> int | None:
        """The number of a packet; None when not exactly one is like it."""
        index = self._index
        like = (index.position == packet.pos) & (index.size == packet.size)
        places = np.flatnonzero(like & (index.pts == packet.pts))
        return int(places[0]) if len(places) == 1 else None
