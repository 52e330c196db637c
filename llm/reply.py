"""The first item of every chat stream, light enough for the gateway to import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplyHead:
    """Status and media type of the HTTP response whose body chunks follow."""

    status: int
    media_type: str
