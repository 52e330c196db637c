"""The Serve application: `serve.yaml` names `build`, which reads a settings file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ray import serve
from ray.serve import Application

from app.deployment import GatewayReplica
from app.identity import checkpoint_identity
from app.settings import (
    Settings,
    SettingsError,
    check_model,
    checkpoint_directory,
    config_path,
    load_settings,
    read_model_config,
)

# Deployment name: where its class is. The classes' modules are light; heavy imports happen in
# their replicas.
STAGES: Mapping[str, str] = {
    "ImageEncoder": "encoders.deployment:ImageEncoder",
    "AudioEncoder": "encoders.deployment:AudioEncoder",
    "VideoDecoder": "video.deployment:VideoDecoder",
    "LLM": "llm.deployment:LLMReplica",
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
    arguments = stage_arguments(settings, str(directory))
    sections = {
        "ImageEncoder": settings.images,
        "AudioEncoder": settings.audio,
        "VideoDecoder": settings.video,
        "LLM": settings.llm,
    }
    handles = [
        serve.deployment(
            _load(stages[name]), name=name, **sections[name].deployment_options()
        ).bind(*arguments[name])
        for name in sections
    ]
    ingress = serve.ingress()(GatewayReplica)
    gateway = serve.deployment(ingress, name="Gateway", **settings.gateway.deployment_options())
    application: Application = gateway.bind(
        settings.model_dump(), model, checkpoint_identity(directory), *handles
    )
    return application


def stage_arguments(settings: Settings, directory: str) -> dict[str, tuple[Any, ...]]:
    """The constructor arguments of every stage's class: plain data."""
    served_name = settings.model.served_name
    llm = {**settings.llm.model_dump(), "model_path": directory, "served_name": served_name}
    return {
        "ImageEncoder": (directory, settings.images.model_dump()),
        "AudioEncoder": (directory, settings.audio.model_dump()),
        "VideoDecoder": (settings.video.model_dump(),),
        "LLM": (llm,),
    }


def _load(path: str) -> type:
    module, _, name = path.partition(":")
    found: type = getattr(import_module(module), name)
    return found
