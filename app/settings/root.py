"""All settings of the application: one file in `configs/` per deployment target."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from app.settings.base import Section
from app.settings.embeddings import EmbeddingSettings
from app.settings.gateway import FetchSettings, GatewaySettings, LocalSettings, ModelSettings
from app.settings.llm import LlmSettings
from app.settings.stages import AudioSettings, ImageSettings, VideoSettings


class Settings(Section):
    """The whole application."""

    model: ModelSettings = Field(description="Which checkpoint is served")
    gateway: GatewaySettings = Field(description="HTTP gateway and its limits")
    fetch: FetchSettings = Field(default=FetchSettings(), description="Guard of remote media")
    images: ImageSettings = Field(description="Image encoder")
    audio: AudioSettings = Field(description="Audio encoder")
    video: VideoSettings = Field(description="Video decoder")
    embeddings: EmbeddingSettings = Field(
        default=EmbeddingSettings(), description="Store of finished embeddings on every node"
    )
    llm: LlmSettings = Field(description="Language model")
    local: LocalSettings = Field(default=LocalSettings(), description="Ray on one machine")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        gateway, local = self.gateway, self.local
        if gateway.max_ongoing_requests <= gateway.max_concurrent_requests:
            raise ValueError(
                f"gateway.max_ongoing_requests is {gateway.max_ongoing_requests}; it must be above "
                f"gateway.max_concurrent_requests ({gateway.max_concurrent_requests}), so that "
                "refusals and health checks are still answered"
            )
        if gateway.held_media_bytes < gateway.max_media_bytes:
            raise ValueError(
                f"gateway.held_media_bytes is {gateway.held_media_bytes}; it must be at least "
                f"gateway.max_media_bytes ({gateway.max_media_bytes})"
            )
        if local.num_cpus is not None and self.reserved_cpus() > local.num_cpus:
            raise ValueError(
                f"local.num_cpus is {local.num_cpus}; the deployments reserve "
                f"{self.reserved_cpus():g} CPUs at least"
            )
        return self

    def reserved_cpus(self) -> float:
        """CPUs that the deployments reserve at their smallest."""
        total = 0.0
        stages = (self.gateway, self.images, self.audio, self.video)
        for stage in (*stages, *self.llm.deployments().values()):
            scaling = stage.autoscaling
            total += stage.num_cpus * (scaling.min_replicas if scaling else stage.replicas)
        return total
