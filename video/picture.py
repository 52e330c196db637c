"""A decoded frame to the picture that is handed on: progressive, scaled, SDR, RGB.

Colour: matrix (BT.601, BT.709, BT.2020, …) and range are those the frame's metadata name; what they
leave open is BT.601 in limited range, libswscale's default and so that of every common decoder.
HDR and wide gamut follow `video.colour`. Transparency is dropped, pixels are taken as square.

Interlace: a frame that the decoder marks as interlaced is shown as its first field, the one that is
seen at the frame's time; scaling fills the other lines. Two fields are two moments: taken as they
are, whatever moves has combs for edges. One frame alone decides its picture, so that no neighbour
needs decoding and no chunk depends on another.
"""

from __future__ import annotations

from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter

from video.colour import conversion


class Pictures:
    """Turns frames into pictures of one size (height, width), as stored. Not thread-safe."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._height, self._width = size
        self._scaler = VideoReformatter()
        self._fields: _FirstField | None = None

    def rgb(self, frame: Any) -> np.ndarray | None:
        """uint8 [height, width, 3], bilinear; None when libav cannot convert the frame."""
        try:
            if frame.interlaced_frame:
                frame = self._first_field(frame)
            convert = conversion(frame)
            if convert is None:
                return self._scaled(frame, "rgb24")
            return convert.apply(self._scaled(frame, "rgb48le"))
        except av.error.FFmpegError:
            return None

    def _scaled(self, frame: Any, form: str) -> np.ndarray:
        scaled = self._scaler.reformat(
            frame, self._width, self._height, form, interpolation=Interpolation.BILINEAR, threads=1
        )
        pixels: np.ndarray = scaled.to_ndarray()
        return pixels

    def _first_field(self, frame: Any) -> Any:
        if self._fields is None or not self._fields.fits(frame):
            self._fields = _FirstField(frame)
        return self._fields(frame)


class _FirstField:
    """libav's `separatefields`, which knows the order of a frame's fields and copies nothing."""

    def __init__(self, frame: Any) -> None:
        self._form = _form(frame)
        graph = av.filter.Graph()
        source = graph.add_buffer(
            width=frame.width,
            height=frame.height,
            format=frame.format.name,
            time_base=frame.time_base or av.time_base,
        )
        fields, sink = graph.add("separatefields"), graph.add("buffersink")
        source.link_to(fields)
        fields.link_to(sink)
        graph.configure()
        self._graph = graph

    def fits(self, frame: Any) -> bool:
        return _form(frame) == self._form

    def __call__(self, frame: Any) -> Any:
        self._graph.push(frame)
        first = None
        while True:  # the second field of the frame before comes first
            try:
                first = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                break
        return frame if first is None else first


def _form(frame: Any) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name
