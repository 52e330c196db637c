"""Failures as a client sees them: an HTTP status and OpenAI's error object.

No message may hold payload bytes (media, text, URLs); a name that a client chose is quoted through
`quoted`, which cuts it. `ApiError.body` therefore stays far under 2 KB.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

MAX_MESSAGE = 400  # characters, of up to four bytes each


class ApiError(Exception):
    """A request that ends in an error object.

    `status` is the HTTP status, `message` a plain sentence, `param` the place in the request
    ("messages[0].content[1]"), `code` a stable word for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
        self.code = code
        self.param = param

    @property
    def type(self) -> str:
        """OpenAI's error type for the status."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def document(self) -> dict[str, dict[str, str | None]]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def body(self) -> bytes:
        """The error object as JSON."""
        return orjson.dumps(self.document())

    def event(self) -> bytes:
        """The error object as a server-sent event, for a reply that has already begun."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self, retry_after_s: float) -> Mapping[str, str]:
        """Headers that go with the status: with a 503, when to come again."""
        return {"retry-after": str(max(1, round(retry_after_s)))} if self.status == 503 else {}


def bad_request(message: str, *, code: str | None = None, param: str | None = None) -> ApiError:
    """400: the request itself is wrong."""
    return ApiError(400, message, code=code, param=param)


def too_large(message: str, *, code: str, param: str | None = None) -> ApiError:
    """413: bytes above a limit that the message names."""
    return ApiError(413, message, code=code, param=param)


def overloaded(message: str) -> ApiError:
    """503: no capacity now, the request may be sent again."""
    return ApiError(503, message, code="overloaded")


def quoted(name: object, limit: int = 48) -> str:
    """A name out of a request, cut to `limit` characters and escaped, for use in a message."""
    text = name if isinstance(name, str) else type(name).__name__
    return repr(text if len(text) <= limit else text[:limit] + "...")


def megabytes(size: int) -> str:
    """A byte limit for people: "8 MiB (8388608 bytes)"."""
    if size < 2**20:
        return f"{size} bytes"
    return f"{size / 2**20:.4g} MiB ({size} bytes)"
