"""The Serve application: `serve.yaml` names `build`, which reads a settings file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from app.deployment import GatewayReplica
from app.frame_size import size_rule
from app.identity import checkpoint_identity
from app.item_options import OptionRules
from app.settings import (
    Settings,
    SettingsError,
    check_model,
    checkpoint_directory,
    config_path,
    load_settings,
    read_model_config,
)
from encoders.digest import content_digest
from encoders.store import StoreOptions

# Deployment name: where its class is. The classes' modules are light; heavy imports happen in
# their replicas.
STAGES: Mapping[str, str] = {
    "ImageEncoder": "encoders.deployment:ImageEncoder",
    "AudioEncoder": "encoders.deployment:AudioEncoder",
    "VideoDecoder": "video.deployment:VideoDecoder",
    "LLM": "llm.deployment:LLMReplica",
    "LLMPrefill": "llm.disaggregation.replica:PrefillReplica",
    "LLMDecode": "llm.disaggregation.replica:DecodeReplica",
}

# Deployments that remember what they encoded, and how calls find the replica that does.
ROUTERS: Mapping[str, str] = {
    "ImageEncoder": "encoders.router.DigestRouter",
    "AudioEncoder": "encoders.router.DigestRouter",
}


def build(args: dict[str, Any]) -> Application:
    """The application of a settings file: `args["config"]`, else OMNISERVE_CONFIG, else pocket."""
    unknown = sorted(set(args) - {"config"})
    if unknown:
        raise SettingsError(f"serve.yaml: args.{unknown[0]} is not known; known: config")
    return build_application(load_settings(config_path(args.get("config"))))


def build_application(settings: Settings, stages: Mapping[str, str] = STAGES) -> Application:
    """The deployments of `settings`, bound together. Raises `SettingsError`."""
    model = read_model_config(settings)
    check_model(settings, model)
    directory = checkpoint_directory(settings)
    store = settings.embeddings.store()
    arguments = stage_arguments(settings, model, str(directory), store)
    sections = {
        "ImageEncoder": settings.images,
        "AudioEncoder": settings.audio,
        "VideoDecoder": settings.video,
        **settings.llm.deployments(),
    }

    def deploy(name: str, *more: Any) -> Application:
        deployment = serve.deployment(
            _load(stages[_stage(name, settings)]),
            name=name,
            **sections[name].deployment_options(),
            **_routing(name, settings),
        )
        return deployment.bind(*arguments[name], *more)

    # Of a pair, the gateway knows the prefill side, which asks the decode side for the answer.
    decode = [deploy(name) for name in sections if name == "LLMDecode"]
    handles = [
        deploy(name, *(decode if name == "LLM" else ())) for name in sections if name != "LLMDecode"
    ]
    ingress = serve.ingress()(GatewayReplica)
    gateway = serve.deployment(ingress, name="Gateway", **settings.gateway.deployment_options())
    application: Application = gateway.bind(
        settings.model_dump(), model, identity(settings, directory), store, *handles
    )
    return application


def stage_arguments(
    settings: Settings,
    model: Mapping[str, Any],
    directory: str,
    store: StoreOptions | None = None,
) -> dict[str, tuple[Any, ...]]:
    """The constructor arguments of every stage's class: plain data, and a rule for frame sizes."""
    served_name = settings.model.served_name
    more = {"model_path": directory, "served_name": served_name, "store": store}
    llm = {
        name: (section.model_dump() | more,) for name, section in settings.llm.deployments().items()
    }
    size_of = size_rule(model, OptionRules.of(settings, model).frame_pixels)
    return {
        "ImageEncoder": (directory, settings.images.model_dump() | {"store": store}),
        "AudioEncoder": (directory, settings.audio.model_dump() | {"store": store}),
        "VideoDecoder": (settings.video.model_dump(), size_of),
        **llm,
    }


def identity(settings: Settings, directory: Path) -> str:
    """Names the checkpoint and every setting that changes how the encoders compute."""
    images, audio = settings.images, settings.audio
    how = [images.dtype, images.sink_form, audio.dtype, audio.attention]
    return content_digest(checkpoint_identity(directory), how)


def _stage(name: str, settings: Settings) -> str:
    """The stage of a deployment: the language model has one for each length bucket, or a pair."""
    if name == "LLM" and settings.llm.disaggregation.enabled:
        return "LLMPrefill"
    return "LLM" if name.startswith("LLM-") else name


def _routing(name: str, settings: Settings) -> dict[str, Any]:
    router = settings.llm.router
    if _stage(name, settings) in ("LLM", "LLMPrefill") and router.policy == "kv_affinity":
        may_sleep = settings.llm.deployments()[name].may_sleep
        config = RequestRouterConfig(
            request_router_class="llm.router.serve.KvRouter",
            request_router_kwargs=router.router_arguments() | {"may_sleep": may_sleep},
            request_routing_stats_period_s=router.report_period_s,
        )
    elif name in ROUTERS:
        config = RequestRouterConfig(request_router_class=ROUTERS[name])
    else:
        return {}
    return {"request_router_config": config}


def _load(path: str) -> type:
    module, _, name = path.partition(":")
    found: type = getattr(import_module(module), name)
    return found
