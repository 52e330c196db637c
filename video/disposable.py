"""Which coded packets no other frame is predicted from, read off their NAL unit headers.

Such a packet can be left out when its own frame is not wanted: the decoder gives the same pixels
for all others. Known for H.264 (nal_ref_idc, 7.4.1) and HEVC (sub-layer non-reference pictures of
the highest sub-layer, 7.4.2.2). In VP9 and AV1 such frames may still carry state for later ones, or
can only be told by reading all headers; there every packet counts as needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

IsDisposable = Callable[[memoryview], bool]
"""The bytes of one packet -> True when nothing but its own frame needs it. False when unsure."""

START_CODE = b"\0\0\1"


def disposable_rule(codec: str | None, extradata: bytes | None) -> IsDisposable | None:
    """The rule for a stream, by libav's name of its codec; None when there is none.

    `extradata`: avcC or hvcC, or parameter sets behind start codes, or nothing (start codes).
    """
    extra = extradata or b""
    if codec == "h264":
        length = (extra[4] & 3) + 1 if len(extra) > 6 and extra[0] == 1 else 0
        return lambda packet: _all(packet, length, _h264)
    if codec == "hevc":
        boxed = len(extra) > 22 and extra[0] == 1
        length = (extra[21] & 3) + 1 if boxed else 0
        layers = extra[21] >> 3 & 7 if boxed else _hevc_layers(extra)
        if layers == 0:  # not said
            return None
        return lambda packet: _all(packet, length, lambda nal: _hevc(nal, layers))
    return None


def _all(packet: memoryview, length: int, judge: Callable[[memoryview], bool | None]) -> bool:
    """Whether a packet holds slices, and `judge` is true for each; it is None for other units."""
    found = False
    for nal in _with_lengths(packet, length) if length else _with_start_codes(packet):
        verdict = judge(nal)
        if verdict is False:
            return False
        found = found or verdict is True
    return found


def _h264(nal: memoryview) -> bool | None:
    kind = nal[0] & 31
    if kind in (1, 2, 3, 4, 5):
        return nal[0] & 0x60 == 0
    return None if kind in (6, 9, 12) else False  # SEI, delimiter, filler; parameter sets are kept


def _hevc(nal: memoryview, layers: int) -> bool | None:
    kind, layer, temporal = nal[0] >> 1 & 63, (nal[0] & 1) << 5 | nal[1] >> 3, (nal[1] & 7) - 1
    if kind < 32:
        return kind < 16 and kind % 2 == 0 and layer == 0 and temporal == layers - 1
    return None if kind in (35, 38, 39, 40) else False  # delimiter, filler, SEI


def _hevc_layers(extradata: bytes) -> int:
    """Temporal sub-layers by the first SPS behind a start code; 0 without one."""
    for nal in _with_start_codes(memoryview(extradata)):
        if nal[0] >> 1 & 63 == 33 and len(nal) > 2:
            return (nal[2] >> 1 & 7) + 1
    return 0


def _with_lengths(packet: memoryview, length: int) -> Iterator[memoryview]:
    """NAL units of at least two bytes; a torn one at the end is given as far as it goes."""
    at = 0
    while at + length + 2 <= len(packet):
        size = int.from_bytes(packet[at : at + length], "big")
        if size >= 2:
            yield packet[at + length : at + length + size]
        at += length + size


def _with_start_codes(packet: memoryview) -> Iterator[memoryview]:
    """From each start code on to the end of the packet: enough for a unit's header."""
    data = bytes(packet)
    at = data.find(START_CODE)
    while 0 <= at < len(data) - 4:
        yield packet[at + 3 :]
        at = data.find(START_CODE, at + 3)
