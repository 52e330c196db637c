"""Checks of the settings against the checkpoint they name, made once at start-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.settings.load import SettingsError, resolve_path
from app.settings.root import Settings
from llm.pool_choice import choose
from llm.pools import PoolError


def read_model_config(settings: Settings) -> dict[str, Any]:
    """`config.json` of the checkpoint. Raises `SettingsError`."""
    directory = resolve_path(settings.model.path)
    path = directory / "config.json"
    if not path.is_file():
        raise SettingsError(
            f"model.path is {settings.model.path!r}; it must be a directory that holds a "
            f"checkpoint, and {path} does not exist"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise SettingsError(f"{path} is not a JSON object")
    return config


def check_model(settings: Settings, config: dict[str, Any]) -> None:
    """Refuse settings that this checkpoint cannot run with. Raises `SettingsError`."""
    llm = settings.llm
    longest = config.get("max_position_embeddings")
    if llm.context_length and isinstance(longest, int) and llm.context_length > longest:
        raise SettingsError(
            f"llm.context_length is {llm.context_length}; it must be from 64 to {longest}, "
            "the checkpoint's max_position_embeddings"
        )
    _check_pixels(settings, config)
    if "hybrid_layer_pattern" in config:
        _check_pools(settings, config)


def _check_pixels(settings: Settings, config: dict[str, Any]) -> None:
    """The settings may narrow the checkpoint's pixel limits, never widen them."""
    processor = config.get("processor_config") or {}
    for section, name, key in (
        ("images", "resize_min_pixels", "image_max_pixels"),
        ("images", "resize_max_pixels", "image_max_pixels"),
        ("video", "min_pixels", "video_max_pixels"),
        ("video", "max_pixels", "video_max_pixels"),
        ("video", "total_max_pixels", "video_total_max_pixels"),
    ):
        value, most = getattr(getattr(settings, section), name), processor.get(key)
        if value is not None and isinstance(most, int) and value > most:
            raise SettingsError(
                f"{section}.{name} is {value}; it must be from 1024 to {most}, "
                f"the checkpoint's {key}"
            )


def _check_pools(settings: Settings, config: dict[str, Any]) -> None:
    """A prefill chunk and every running request's window must fit the SWA pool.

    An engine whose SWA pool is smaller stalls without an error (seen with SGLang 0.5.23: 300 SWA
    slots and the default chunk size), so it is refused here.
    """
    for name, llm in settings.llm.deployments().items():
        try:
            choose(llm.model_dump(), config)
        except PoolError as error:
            key = "llm.kv_bytes" if llm.kv_bytes else "llm.max_total_tokens"
            value = llm.kv_bytes or llm.max_total_tokens
            where = "" if name == "LLM" else f" ({name})"
            raise SettingsError(f"{key} is {value}{where}: {error}") from None


def checkpoint_directory(settings: Settings) -> Path:
    """Absolute directory of the checkpoint."""
    return resolve_path(settings.model.path).resolve()
