"""What can go wrong, by whose fault."""

from __future__ import annotations


class MediaError(ValueError):
    """The file is to blame: the request cannot succeed and must not be retried.

    `reason` is one short sentence without payload, fit to be shown to a client.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DecoderCrashed(RuntimeError):
    """The server is to blame (no decoder process could be started): may be retried elsewhere."""


class DecoderBusy(RuntimeError):
    """The queue of this replica is full: may be retried later or elsewhere."""


class Cancelled(Exception):
    """The caller no longer wants the answer. Never leaves this room."""
