"""What the settings of both encoders share."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from app.settings.base import Autoscaling, Scaling


class EncoderAutoscaling(Autoscaling):
    """Scaling of an encoder, by the work that its replicas have accepted and not finished."""

    target_ongoing_requests: float | None = Field(  # type: ignore[assignment]  # wider than its base
        default=None,
        gt=0,
        le=10_000,
        description="Requests in progress that one replica should have; or give "
        "target_pending_work",
    )
    target_pending_work: float | None = Field(
        default=None,
        gt=0,
        le=1e12,
        description="Patches (images) or mel frames (audio) accepted and not finished that one "
        "replica should have; some full batches",
    )

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.target_ongoing_requests is None) == (self.target_pending_work is None):
            raise ValueError("give either target_pending_work or target_ongoing_requests")
        return self

    def serve_options(self) -> dict[str, Any]:
        options = super().serve_options()
        target = options.pop("target_pending_work")
        if target is not None:
            del options["target_ongoing_requests"]
            options["policy"] = {
                "policy_function": "encoders.autoscaling:WorkPolicy",
                "policy_kwargs": {"target_work": target},
            }
        return options


class EncoderSettings(Scaling):
    """What both encoders have."""

    autoscaling: EncoderAutoscaling | None = Field(
        default=None, description="Scale between two counts; replaces 'replicas' when given"
    )
    max_wait_ms: float = Field(
        default=2.0, ge=0, le=1000, description="Longest wait for batch mates, in milliseconds"
    )
    queue_timeout_s: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Longest wait of an item for its preparation and its forward pass; then the "
        "call is refused as when no replica takes it",
    )
