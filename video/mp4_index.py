"""The packet index of an MP4 or MOV file from its sample tables, without reading its packets.

libav's own index has decode times, key flags and the effect of edit lists, but not the composition
offsets; these come from the file's tables, matched by position. The result is held against packets
read the ordinary way at the start and behind the last key packet; at the first difference, and when
the file is of another make (fragments, compressed headers, torn), there is none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import av
import numpy as np

from video.index import PacketIndex
from video.source import Source

CHECKED = 64
"""Packets compared at the start."""
MIN_PACKETS = 1000
"""Shorter tracks are read through: that takes a few milliseconds."""
MAX_OFFSET = 1 << 28
"""Larger composition offsets are damage."""

Packets = Callable[[Any, Any], Iterator[Any]]
"""(container, stream) -> its non-empty packets from where the container stands."""


def tabled_index(source: Source, number: int, packets: Packets) -> PacketIndex | None:
    """The index of stream `number`; None when only reading it through will tell."""
    with source.open() as container:
        if not container.format.name.startswith("mov"):
            return None
        stream = container.streams[number]
        if not MIN_PACKETS <= len(stream.index_entries) <= source.limits.packets:
            return None
        try:
            found = _combine(stream, source.data)
        except (struct.error, ValueError, IndexError, MemoryError):
            return None
        if found is None:
            return None
        first = packets(container, stream)
        if not all(_same(found, at, next(first, None)) for at in range(CHECKED)):
            return None
        last = int(np.flatnonzero(found.key)[-1])
        if len(found) - last > len(found) / 4:
            return None
        try:
            container.seek(int(found.pts[last]), stream=stream, backward=True)
        except av.error.FFmpegError:
            return None
        rest = packets(container, stream)
        # With an edit list libav may land on the key packet before.
        before = takewhile(lambda packet: packet.pos != found.position[last], rest)
        if sum(1 for _ in before) > len(found) / 4:
            return None
        ends = all(_same(found, at, next(rest, None)) for at in range(last + 1, len(found)))
        return found if ends and next(rest, None) is None else None


def _same(index: PacketIndex, at: int, packet: Any) -> bool:
    return packet is not None and (
        packet.pts,
        packet.dts,
        packet.duration,
        packet.pos,
        packet.size,
        packet.is_keyframe,
        packet.is_discard,
    ) == (
        index.pts[at],
        index.dts[at],
        index.duration[at],
        index.position[at],
        index.size[at],
        index.key[at],
        index.discard[at],
    )


def _combine(stream: Any, data: memoryview) -> PacketIndex | None:
    # One by one: as a list the entries of an hour would take 20 MB.
    rows = (
        (e.timestamp, e.pos, e.size, e.is_keyframe, e.is_discard)
        for e in stream.index_entries
        if e.size
    )
    columns = np.fromiter(rows, np.dtype((np.int64, 5))).T
    dts, position, size = (column.copy() for column in columns[:3])
    key, discard = (column.astype(bool) for column in columns[3:])
    del columns
    moov = _child(data, b"moov")
    if moov is None or _child(moov, b"mvex") is not None or not key.any():
        return None
    table = next((t for t in map(_table, _children(moov, b"trak")) if t[0] == stream.id), None)
    if table is None:
        return None
    _, places, offsets, durations = table
    where = np.searchsorted(places, position)
    inside = (position + size <= len(data)).all() and (where < len(places)).all()
    if not inside or (places[where] != position).any() or np.abs(offsets).max() > MAX_OFFSET:
        return None
    # Where negative offsets occur libav moves the whole track; the first packet tells by how much.
    shift = max(0, -int(offsets.min()))
    return PacketIndex(
        pts=dts + offsets[where] + shift,
        dts=dts,
        duration=durations[where],
        position=position,
        size=size,
        key=key,
        discard=discard,
    )


def _table(trak: memoryview) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """(track id, and per sample in order of position: position, composition offset, duration).

    Raises ValueError when samples share a position or tables disagree.
    """
    header = _need(trak, b"tkhd")
    (track,) = struct.unpack_from(">I", header, 20 if header[0] == 1 else 12)
    tables = _need(_need(_need(trak, b"mdia"), b"minf"), b"stbl")
    fixed, count = struct.unpack_from(">II", _need(tables, b"stsz"), 4)
    if count > 1 << 24:
        raise ValueError("too many samples")
    sizes = np.full(count, fixed, np.int64) if fixed else _words(tables, b"stsz", 8, 1)[:, 0]
    wide = _child(tables, b"co64")
    chunks = np.frombuffer(wide, ">i8", offset=8) if wide else _words(tables, b"stco", 4, 1)[:, 0]
    runs = _words(tables, b"stsc", 4, 3)
    per_chunk = np.repeat(runs[:, 1], np.diff(runs[:, 0], append=len(chunks) + 1))
    if len(per_chunk) != len(chunks) or per_chunk.sum() != count:
        raise ValueError("the tables disagree")
    before = np.cumsum(sizes) - sizes
    starts = np.cumsum(per_chunk) - per_chunk
    places = np.repeat(chunks - before[np.minimum(starts, count - 1)], per_chunk) + before
    offsets = np.zeros(count, np.int64)
    if _child(tables, b"ctts") is not None:
        offsets = _expanded(_words(tables, b"ctts", 4, 2), count)
    durations = _expanded(_words(tables, b"stts", 4, 2), count)
    if sizes.all() and (np.diff(places) > 0).all():
        return track, places, offsets, durations
    full = np.flatnonzero(sizes)
    order = full[np.argsort(places[full])]
    if (np.diff(places[order]) <= 0).any():
        raise ValueError("samples share a position")
    return track, places[order], offsets[order], durations[order]


def _expanded(runs: np.ndarray, count: int) -> np.ndarray:
    """Values of (count, value) runs, one per sample."""
    if runs[:, 0].sum() != count or (runs[:, 0] < 0).any():
        raise ValueError("the tables disagree")
    return np.repeat(runs[:, 1], runs[:, 0])


def _words(boxes: memoryview, kind: bytes, skip: int, columns: int) -> np.ndarray:
    """int64 [n, columns]: the 32-bit rows of a table behind version, flags, `skip` and a count."""
    body = _need(boxes, kind)
    (count,) = struct.unpack_from(">I", body, skip)
    values = np.frombuffer(body, ">i4", count * columns, skip + 4)
    return values.reshape(-1, columns).astype(np.int64)


def _need(boxes: memoryview, kind: bytes) -> memoryview:
    found = _child(boxes, kind)
    if found is None:
        raise ValueError(f"no {kind!r}")
    return found


def _child(boxes: memoryview, kind: bytes) -> memoryview | None:
    return next(_children(boxes, kind), None)


def _children(boxes: memoryview, kind: bytes) -> Iterator[memoryview]:
    at = 0
    while at + 8 <= len(boxes):
        size, name = struct.unpack_from(">I4s", boxes, at)
        head = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", boxes, at + 8)
            head = 16
        elif size == 0:
            size = len(boxes) - at
        if size < head:
            return
        if name == kind:
            yield boxes[at + head : at + size]
        at += size
