"""Settings of the engine's queue, the router in front of its replicas, and length buckets."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from app.settings.base import Section, WorkAutoscaling
from llm.buckets import BucketPolicy
from llm.router.policy import RoutingPolicy

_POLICY = RoutingPolicy()


class LlmAutoscaling(WorkAutoscaling):
    """Scaling of a language-model deployment, by uncached tokens or by requests in progress."""

    work_target = "target_uncached_tokens"
    target_uncached_tokens: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Uncached tokens queued and running that one replica should have",
    )


class QueueSettings(Section):
    """The order of waiting requests in an engine; docs/scheduling.md has the formula."""

    policy: Literal["compute_aware", "fcfs"] = Field(
        default="compute_aware",
        description="Least uncached work first with a bounded wait, or first come, first served",
    )
    penalty: float = Field(
        default=0.05,
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
        default=_POLICY.weight,
        ge=0,
        le=1000,
        description="Weight of the matched share of a prompt",
    )
    load_tokens: float = Field(
        default=_POLICY.load_tokens,
        gt=0,
        le=1e9,
        description="Least unit of load: uncached tokens that count as 1 in the score",
    )
    held_weight: float = Field(
        default=_POLICY.held_weight,
        ge=0,
        le=1,
        description="What a token counts that is held after the last place where a match may stop",
    )
    overload_factor: float = Field(
        default=_POLICY.overload_factor,
        ge=1,
        le=1000,
        description="Load of a replica over the mean from which others are asked first",
    )
    overload_tokens: float = Field(
        default=_POLICY.overload_tokens,
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
        names = (
            "weight",
            "held_weight",
            "load_tokens",
            "overload_factor",
            "overload_tokens",
            "max_pairs",
        )
        return {name: getattr(self, name) for name in names}


class BucketClass(Section):
    """A length bucket: requests by their uncached tokens, and the replicas that serve them."""

    up_to_tokens: int = Field(
        ge=1, le=16_777_216, description="Most uncached tokens of a request of this class"
    )
    replicas: int = Field(default=1, ge=1, le=10_000, description="Replicas without autoscaling")
    autoscaling: LlmAutoscaling | None = Field(
        default=None, description="Scale between two counts; replaces 'replicas' when given"
    )
    chunked_prefill_size: int | None = Field(
        default=None, ge=16, le=1_048_576, description="Prompt tokens per pass; null = llm's own"
    )

    @model_validator(mode="after")
    def _awake(self) -> Self:
        if self.autoscaling is not None and self.autoscaling.min_replicas < 1:
            # Its work would go to other classes for ever: nothing would wake it up.
            raise ValueError("autoscaling.min_replicas is 0; a length bucket needs at least 1")
        return self

    @property
    def name(self) -> str:
        """Of its deployment."""
        tokens = self.up_to_tokens
        return f"LLM-{tokens // 1024}K" if tokens % 1024 == 0 else f"LLM-{tokens}"


class BucketSettings(Section):
    """Length buckets: a deployment for each class of uncached work, none = one for all."""

    classes: list[BucketClass] = Field(default=[], description="Classes, shortest first")
    busy_tokens: float = Field(
        default=32_768,
        ge=0,
        le=1e9,
        description="Uncached tokens per replica above which a class lets work overflow",
    )
    idle_tokens: float = Field(
        default=0,
        ge=0,
        le=1e9,
        description="Uncached tokens per replica up to which a class takes others' work",
    )
    overflow_down: bool = Field(
        default=False, description="Whether long work may overflow into shorter classes"
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        bounds = [each.up_to_tokens for each in self.classes]
        if len(bounds) == 1 or bounds != sorted(set(bounds)):
            raise ValueError(
                f"classes go up to {bounds} tokens; there must be none or at least two, ascending"
            )
        if self.idle_tokens > self.busy_tokens:
            raise ValueError(
                f"idle_tokens is {self.idle_tokens:g}; "
                f"it must be at most busy_tokens ({self.busy_tokens:g})"
            )
        return self

    def policy(self) -> BucketPolicy | None:
        """The rules, or None without buckets."""
        if not self.classes:
            return None
        bounds = tuple(each.up_to_tokens for each in self.classes)
        return BucketPolicy(bounds, self.busy_tokens, self.idle_tokens, self.overflow_down)
