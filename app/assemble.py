"""Putting the gateway together. Knows nothing of Ray: tests use it with plain stages."""

from __future__ import annotations

from typing import Any

from app.fetch import Fetcher
from app.gateway import Gateway
from app.item_options import OptionRules
from app.media import MediaEncoder
from app.media_budget import MediaBudget
from app.pipeline import Pipeline
from app.settings import Settings
from app.stages import Stages
from encoders.store import StoreOptions


def make_gateway(
    settings: Settings,
    model: dict[str, Any],
    identity: str,
    stages: Stages,
    store: StoreOptions | None = None,
) -> Gateway:
    """The gateway over any stages; `store` as in `MediaEncoder`."""
    gateway, processor = settings.gateway, model.get("processor_config") or {}
    budget = MediaBudget(gateway.held_media_bytes)
    media = MediaEncoder(
        stages,
        Fetcher(settings.fetch, budget=budget),
        OptionRules.of(settings, model),
        identity,
        interleave=int(processor.get("video_audio_interleave_length") or 0),
        max_item_bytes=gateway.max_media_bytes,
        timeout_s=gateway.media_timeout_s,
        store=store,
        parts_in_work=settings.video.parts_in_work,
        budget=budget,
    )
    pipeline = Pipeline(
        stages,
        media,
        served_name=settings.model.served_name,
        max_items=gateway.max_media_items,
        request_timeout_s=gateway.request_timeout_s,
        progress_s=gateway.progress_period_s,
    )
    return Gateway(pipeline, gateway)
