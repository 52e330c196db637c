"""Settings of the engine's queue, the router in front of its replicas, and length buckets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.settings.base import Section


class QueueSettings(Section):
    """The order of waiting requests in an engine; docs/scheduling.md has the formula."""

    policy: Literal["compute_aware", "fcfs"] = Field(
        default="compute_aware",
        description="Least uncached work first with a bounded wait, or first come, first served",
    )
    penalty: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Tokens of uncached work that a token of waiting outweighs",
    )
    head_start_tokens: float = Field(
        default=65_536,
        ge=0,
        le=1e9,
        description="Tokens of served work by which a service tier precedes the one below",
    )
    chunk_share: float = Field(
        default=0.5,
        ge=0,
        le=0.9,
        description="Share of a prefill pass that shorter requests may take from a long one in "
        "progress",
    )


class RouterSettings(Section):
    """How chats find a language-model replica; docs/scheduling.md has the formula."""

    policy: Literal["kv_affinity", "power_of_two"] = Field(
        default="kv_affinity",
        description="Where the chat's prefix is held and load allows, or Serve's own choice",
    )
    weight: float = Field(
        default=2.0, ge=0, le=1000, description="Weight of the matched share of a prompt"
    )
    overload_factor: float = Field(
        default=1.5,
        ge=1,
        le=1000,
        description="Load of a replica over the mean from which others are asked first",
    )
    overload_tokens: float = Field(
        default=16_384,
        ge=0,
        le=1e9,
        description="Uncached tokens queued and running below which no replica is overloaded",
    )
    block_bytes: int = Field(
        default=1024,
        ge=32,
        le=65_536,
        description="Bytes of text in one block of a prompt's identity",
    )
    max_pairs: int = Field(
        default=1 << 19,
        ge=1024,
        le=1 << 28,
        description="Blocks of all replicas that a gateway remembers, about 200 bytes each",
    )
    report_period_s: float = Field(
        default=1.0, gt=0, le=60, description="Seconds between a replica's reports"
    )

    def router_arguments(self) -> dict[str, float]:
        """Keyword arguments of the router class."""
        names = ("weight", "overload_factor", "overload_tokens", "max_pairs")
        return {name: getattr(self, name) for name in names}
