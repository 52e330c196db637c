"""Typed settings: sections, loading and the checks at start-up."""

from app.settings.checks import check_model, checkpoint_directory, read_model_config
from app.settings.load import (
    CONFIG_ENV,
    DEFAULT_CONFIG,
    ROOT,
    SettingsError,
    config_path,
    load_settings,
    parse_settings,
    resolve_path,
)
from app.settings.root import Settings

__all__ = [
    "CONFIG_ENV",
    "DEFAULT_CONFIG",
    "ROOT",
    "Settings",
    "SettingsError",
    "check_model",
    "checkpoint_directory",
    "config_path",
    "load_settings",
    "parse_settings",
    "read_model_config",
    "resolve_path",
]
