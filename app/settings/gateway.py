"""Settings of the model's identity, the gateway, remote media and the local runtime."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.settings.base import GIB, MIB, Scaling, Section


class ModelSettings(Section):
    """Which checkpoint is served, and under which name."""

    path: str = Field(
        min_length=1,
        description="Directory of the checkpoint; relative paths start at the repository's root",
    )
    served_name: str = Field(
        min_length=1, max_length=200, description="The name that requests give in 'model'"
    )


class GatewaySettings(Scaling):
    """The HTTP gateway: limits on requests, and how long things may take."""

    max_body_bytes: int = Field(
        default=64 * MIB, ge=1024, le=16 * GIB, description="Bytes of a request body"
    )
    max_media_items: int = Field(
        default=16, ge=0, le=10_000, description="Media parts in one request"
    )
    max_media_bytes: int = Field(
        default=32 * MIB,
        ge=1,
        le=16 * GIB,
        description="Bytes of one media item, after base64 or download",
    )
    held_media_bytes: int = Field(
        default=1 * GIB,
        ge=1,
        le=1024 * GIB,
        description="Bytes of media that all requests of one gateway replica hold together; a "
        "download that would exceed it is refused with 503 and Retry-After",
    )
    max_concurrent_requests: int = Field(
        default=64,
        ge=1,
        le=100_000,
        description="Chats in progress in one gateway replica; more get 503 with Retry-After",
    )
    retry_after_s: float = Field(
        default=1.0, ge=1, le=3600, description="Seconds that a refused client is told to wait"
    )
    body_timeout_s: float = Field(
        default=60.0, gt=0, le=86_400, description="Seconds in which a request body must arrive"
    )
    media_timeout_s: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Seconds in which all media of a request must be fetched and encoded",
    )
    request_timeout_s: float = Field(
        default=1800.0, gt=0, le=604_800, description="Seconds of a whole request"
    )
    progress_period_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="Seconds between two comments about the progress of a streamed request",
    )
    ready_timeout_s: float = Field(
        default=5.0, gt=0, le=600, description="Seconds in which every stage must answer /ready"
    )


class FetchSettings(Section):
    """The guard around remote media. The defaults allow any public http and https server."""

    schemes: list[Literal["http", "https"]] = Field(
        default=["http", "https"], min_length=1, description="URL schemes that may be fetched"
    )
    ports: list[int] = Field(
        default=[80, 443], description="Ports that may be fetched from (see private_hosts)"
    )
    allowed_hosts: list[str] | None = Field(
        default=None,
        description="Only these hosts ('.example.org' includes sub-domains); null = any public "
        "host, an empty list = none",
    )
    private_hosts: list[str] = Field(
        default=[],
        description="Hosts that may have addresses that are not public; 'host:port' also opens "
        "that port",
    )
    allow_private_networks: bool = Field(
        default=False, description="Drop the rule that addresses must be public"
    )
    max_redirects: int = Field(default=5, ge=0, le=20, description="Redirects to follow")
    connect_timeout_s: float = Field(
        default=5.0, gt=0, le=600, description="Seconds to reach a server"
    )
    timeout_s: float = Field(
        default=30.0, gt=0, le=3600, description="Seconds of a whole download, redirects included"
    )


class LocalSettings(Section):
    """How `python -m app.serve` starts Ray on this machine when there is no cluster to join."""

    num_cpus: int | None = Field(
        default=None, ge=1, le=4096, description="CPUs that Ray may hand out; null = all"
    )
    object_store_bytes: int = Field(
        default=512 * MIB, ge=80 * MIB, le=4096 * GIB, description="Size of Ray's object store"
    )
    threads: int = Field(
        default=1, ge=1, le=1024, description="Compute threads (OpenMP) of each replica process"
    )
    lean: bool = Field(
        default=True, description="Leave out Ray's dashboard, autoscaler and log monitor"
    )
    startup_timeout_s: float = Field(
        default=180.0, gt=0, le=86_400, description="Seconds until every deployment must be up"
    )
