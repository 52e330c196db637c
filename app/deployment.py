"""The gateway's replica: settings and handles in, an ASGI application out."""

from __future__ import annotations

from typing import Any

from ray.serve.handle import DeploymentHandle

from app.assemble import make_gateway
from app.gateway import Gateway
from app.serve_stages import serve_stages
from app.settings import Settings
from encoders.store import StoreOptions


class GatewayReplica:
    """What Serve runs as the ingress deployment.

    `settings` and `model` are plain data (the settings file, the checkpoint's config.json), so that
    every replica sees what was checked at start-up; `identity` names the checkpoint, `store` where
    a node keeps its embeddings.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        model: dict[str, Any],
        identity: str,
        store: StoreOptions | None,
        images: DeploymentHandle,
        audio: DeploymentHandle,
        video: DeploymentHandle,
        *llm: DeploymentHandle,
    ) -> None:
        checked = Settings.model_validate(settings)
        buckets, router = checked.llm.buckets.policy(), checked.llm.router
        may_sleep = any(section.may_sleep for section in checked.llm.deployments().values())
        stages = serve_stages(images, audio, video, llm, buckets, router.block_bytes, may_sleep)
        self._gateway = make_gateway(checked, model, identity, stages, store)

    def __serve_build_asgi_app__(self) -> Gateway:
        """Called by `serve.ingress()` once the replica is constructed."""
        return self._gateway
