"""What a replica and its decoder processes say to each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recvfds, sendfds
from typing import Any, Literal

from video import shared
from video.clip import Allocate, SizeOf
from video.limits import Limits
from video.sampling import SamplingOptions

Work = Callable[[Any, Allocate], Any]
"""What a process does with a file: (Source, allocate) -> anything that pickles."""

READY = b"ready"
CANCEL = b"cancel"


@dataclass(frozen=True)
class Job:
    size: int
    """Bytes of the file; its descriptor follows the job."""
    limits: Limits
    options: SamplingOptions | None
    """None: only the sound is wanted."""
    size_of: SizeOf | None = None
    sound: bool = True
    threads: int = 1
    spent: float = 0.0
    """Seconds of the file's time budget that earlier jobs took."""
    work: Work | None = None
    """Something else than a clip or its sound; the fields from `options` on then say nothing."""


@dataclass(frozen=True)
class Reply:
    status: Literal["done", "refused", "cancelled", "failed"]
    reason: str = ""
    """Why refused (fit for the client) or failed (a traceback, for the log)."""
    packed: shared.Packed | None = None
    """The Clip or Sound when done; its descriptors follow the reply."""


class Channel:
    """Byte messages and descriptors over one Unix socket; used alike by both ends."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._connection = Connection(os.dup(end.fileno()))

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        self._connection.send_bytes(message)
        if descriptors:
            sendfds(self._socket, list(descriptors))

    def receive(self) -> bytes:
        return self._connection.recv_bytes()

    def receive_descriptors(self, count: int) -> list[int]:
        return recvfds(self._socket, count) if count else []

    def poll(self, seconds: float = 0.0) -> bool:
        """Whether a message, or the end of the other side, is there."""
        return self._connection.poll(seconds)

    def close(self) -> None:
        self._connection.close()
        self._socket.close()
