"""The base of every settings section, and the scaling options that all stages share.

Sections are frozen, refuse unknown keys and convert nothing: a text "8" is not the number 8.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Device = Annotated[
    str,
    Field(
        pattern=r"^(cpu|cuda(:\d+)?|xpu|npu)$",
        description="one of cpu, cuda, cuda:N, xpu and npu",
    ),
]
Dtype = Literal["float32", "bfloat16", "float16"]

KIB, MIB, GIB = 2**10, 2**20, 2**30


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Autoscaling(Section):
    """Scaling of a deployment between two replica counts, by requests in progress."""

    min_replicas: int = Field(ge=0, le=10_000, description="Fewest replicas")
    max_replicas: int = Field(ge=1, le=10_000, description="Most replicas")
    target_ongoing_requests: float = Field(
        gt=0, le=10_000, description="Requests in progress that one replica should have"
    )
    upscale_delay_s: float = Field(
        default=10.0, ge=0, le=3600, description="Seconds of load before a replica is added"
    )
    downscale_delay_s: float = Field(
        default=300.0, ge=0, le=86_400, description="Seconds of idling before one is removed"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas is {self.min_replicas}; "
                f"it must be at most max_replicas ({self.max_replicas})"
            )
        return self

    def serve_options(self) -> dict[str, Any]:
        """Serve's `autoscaling_config`."""
        return self.model_dump()


class WorkAutoscaling(Autoscaling):
    """Scaling by the work that replicas report, or by requests in progress.

    A subclass adds the target of work as a field of its own and names it in ``work_target``.
    """

    work_target: ClassVar[str]

    target_ongoing_requests: float | None = Field(  # type: ignore[assignment]  # wider than its base
        default=None,
        gt=0,
        le=10_000,
        description="Requests in progress that one replica should have, instead of a target of "
        "work",
    )

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.target_ongoing_requests is None) == (getattr(self, self.work_target) is None):
            raise ValueError(f"give either {self.work_target} or target_ongoing_requests")
        return self

    def serve_options(self) -> dict[str, Any]:
        options = super().serve_options()
        target = options.pop(self.work_target)
        if target is not None:
            del options["target_ongoing_requests"]
            options["policy"] = {
                "policy_function": "encoders.autoscaling:WorkPolicy",
                "policy_kwargs": {"target_work": target},
            }
        return options


class Scaling(Section):
    """What every deployment has: replicas, resources and queue bounds."""

    replicas: int = Field(default=1, ge=1, le=10_000, description="Replicas without autoscaling")
    autoscaling: Autoscaling | None = Field(
        default=None, description="Scale between two counts; replaces 'replicas' when given"
    )
    num_cpus: float = Field(ge=0, le=1024, description="CPUs that Ray reserves for a replica")
    num_gpus: float = Field(default=0, ge=0, le=64, description="GPUs reserved for a replica")
    max_ongoing_requests: int = Field(
        default=64, ge=1, le=100_000, description="Calls that a replica works on at once"
    )
    max_queued_requests: int = Field(
        default=256,
        ge=-1,
        le=1_000_000,
        description="Calls that may wait for a replica before new ones are refused; -1 = no bound",
    )
    health_check_period_s: float = Field(
        default=10.0, gt=0, le=3600, description="Seconds between health checks of a replica"
    )
    graceful_shutdown_s: float = Field(
        default=5.0, ge=0, le=3600, description="Seconds a replica gets to finish its calls"
    )

    def deployment_options(self) -> dict[str, Any]:
        """Keyword arguments for `serve.deployment`."""
        options: dict[str, Any] = {
            "ray_actor_options": {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus},
            "max_ongoing_requests": self.max_ongoing_requests,
            "max_queued_requests": self.max_queued_requests,
            "health_check_period_s": self.health_check_period_s,
            "graceful_shutdown_timeout_s": self.graceful_shutdown_s,
            "graceful_shutdown_wait_loop_s": min(0.5, self.graceful_shutdown_s),
        }
        if self.autoscaling is None:
            options["num_replicas"] = self.replicas
        else:
            options["autoscaling_config"] = self.autoscaling.serve_options()
        return options
