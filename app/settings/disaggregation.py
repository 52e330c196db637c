"""Settings of prefill and decode pools."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from app.settings.base import Section
from app.settings.scheduling import LlmAutoscaling


class PoolSettings(Section):
    """One of the two pools; what is not given here is as in 'llm'."""

    replicas: int = Field(default=1, ge=1, le=10_000, description="Replicas without autoscaling")
    autoscaling: LlmAutoscaling | None = Field(
        default=None, description="Scale between two counts; replaces 'replicas' when given"
    )
    max_running_requests: int | None = Field(
        default=None, ge=1, le=65_536, description="Requests at once; null = llm's own"
    )
    mem_fraction: float | None = Field(
        default=None, gt=0, lt=1, description="Share of device memory; null = llm's own"
    )

    @model_validator(mode="after")
    def _awake(self) -> Self:
        if self.autoscaling is not None and self.autoscaling.min_replicas < 1:
            raise ValueError("autoscaling.min_replicas is 0; a pool of a pair needs at least 1")
        return self


class DisaggregationSettings(Section):
    """Prefill and decode on engines of their own, over SGLang's KV transfer."""

    enabled: bool = Field(default=False, description="Serve by pairs of engines")
    backend: Literal["mooncake", "nixl"] = Field(
        default="mooncake", description="SGLang's transfer of KV between engines"
    )
    ib_device: str | None = Field(
        default=None,
        min_length=1,
        description="Network devices, as SGLang's disaggregation_ib_device; null = its choice",
    )
    allocation: Literal["prefill_complete", "early"] = Field(
        default="prefill_complete",
        description="When the decode engine reserves a request's KV: once its prompt is computed, "
        "or as soon as it arrives",
    )
    host_receive_threshold: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Device KV usage from which KV is received in host memory; 1 = never",
    )
    reserved_decode_tokens: int = Field(
        default=512, ge=1, le=1_048_576, description="Tokens kept free per request for its answer"
    )
    checksum: bool = Field(default=False, description="Verify the KV of every request")
    transfer_timeout_s: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Seconds in which a request's first token must be decoded",
    )
    prefill: PoolSettings = Field(default=PoolSettings(), description="Prefill pool")
    decode: PoolSettings = Field(default=PoolSettings(), description="Decode pool")

    @model_validator(mode="after")
    def _receivable(self) -> Self:
        if self.host_receive_threshold < 1:
            raise ValueError(
                f"host_receive_threshold is {self.host_receive_threshold:g}; it must be 1: neither "
                "mooncake nor nixl of SGLang 0.5.23 can receive into host memory. allocation "
                "'prefill_complete' keeps waiting requests off the decode device"
            )
        return self
