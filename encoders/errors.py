"""The errors that encoders raise on purpose: bad input, and no capacity."""

from __future__ import annotations


class MediaError(ValueError):
    """An image, sound or clip that cannot be encoded.

    `reason` is one short sentence that may be shown to a client: it never holds payload bytes.
    Every other exception out of an encoder is a fault of ours, not of the input.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __reduce__(self) -> tuple[type[MediaError], tuple[str]]:
        return type(self), (self.reason,)


class EncoderBusy(RuntimeError):
    """An item waited longer than it may: the encoder is overloaded, the call may come again."""
