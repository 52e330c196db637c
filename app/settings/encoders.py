"""What the settings of both encoders share."""

from __future__ import annotations

from pydantic import Field

from app.settings.base import Scaling, WorkAutoscaling


class EncoderAutoscaling(WorkAutoscaling):
    """Scaling of an encoder, by the work that its replicas have accepted and not finished."""

    work_target = "target_pending_work"
    target_pending_work: float | None = Field(
        default=None,
        gt=0,
        le=1e12,
        description="Patches (images) or mel frames (audio) accepted and not finished that one "
        "replica should have; some full batches",
    )


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
