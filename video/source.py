"""Opening a file that is only bytes we hold (case 22).

libav can follow references out of a file (playlists, `concat` scripts, SDP, image patterns,
external tracks). Four locks keep it in: only demuxers that read one file are allowed, no protocol
is allowed, every nested open is refused, and the bytes come from memory, never by name.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av

from video.budget import Budget
from video.errors import MediaError
from video.limits import Limits

# Names as libav's `format_whitelist` matches them: one per demuxer suffices.
FORMATS = (
    # moving pictures
    "mov", "matroska", "avi", "mpegts", "mpeg", "flv", "asf", "ogg", "mxf", "nut", "ivf", "rm",
    "dv", "gif", "apng", "yuv4mpegpipe", "h264", "hevc", "vvc", "obu", "av1", "m4v", "mpegvideo",
    "mjpeg", "vc1", "h263",
    # sound
    "wav", "w64", "mp3", "aac", "flac", "aiff", "au", "caf", "amr", "ac3", "eac3", "dts", "wv",
    "tta", "ape", "tak", "voc", "loas",
)  # fmt: skip


class ByteFile(io.RawIOBase):
    """A read-only file over a buffer; every read asks the budget, so libav cannot run away."""

    def __init__(self, data: memoryview, budget: Budget) -> None:
        super().__init__()
        self._data = data
        self._budget = budget
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self._budget.check()
        end = len(self._data) if size < 0 else self._position + size
        block = bytes(self._data[self._position : end])
        self._position += len(block)
        return block

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._data)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position


class Source:
    """The bytes of one file, their limits and their time budget. Opened as often as needed."""

    def __init__(
        self,
        data: bytes | memoryview,
        limits: Limits | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.data = memoryview(data)
        self.limits = limits or Limits()
        self.budget = budget or Budget(self.limits.decode_seconds)
        self.limits.check_bytes(len(self.data))

    @contextmanager
    def open(self) -> Iterator[Any]:
        """An av.InputContainer; MediaError when no allowed demuxer reads the bytes."""
        self.budget.check()
        try:
            container = av.open(
                ByteFile(self.data, self.budget),
                mode="r",
                container_options={
                    "format_whitelist": ",".join(FORMATS),
                    "protocol_whitelist": "none",
                },
                # Reaches the decoders that libav itself opens to learn a stream's parameters.
                options={"max_pixels": str(self.limits.frame_pixels)},
                metadata_errors="replace",
                io_open=_refuse,
                buffer_size=1 << 16,
            )
        except av.error.FFmpegError as error:
            raise MediaError("the bytes are no audio or video file this server reads") from error
        try:
            # PyAV turns on guessing of missing timestamps; the guess is wrong for B-frames.
            container.flags &= ~av.container.Flags.gen_pts.value
            yield container
        finally:
            container.close()


def _refuse(*_: object) -> None:
    raise MediaError("the file refers to other files, which are never opened")
