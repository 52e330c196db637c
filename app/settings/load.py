"""Reading a settings file, with errors in plain sentences."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from app.settings.explain import explain
from app.settings.root import Settings

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_CONFIG = "configs/pocket.yaml"
CONFIG_ENV = "OMNISERVE_CONFIG"


class SettingsError(ValueError):
    """A settings file that cannot be used; the text has one sentence per mistake."""


def resolve_path(path: str) -> Path:
    """A path of a settings or serve file: as given, else from the repository's root."""
    given = Path(path).expanduser()
    return given if given.is_absolute() or given.exists() else ROOT / given


def config_path(argument: str | None = None) -> Path:
    """The settings file: OMNISERVE_CONFIG, else the argument, else `configs/pocket.yaml`."""
    return resolve_path(os.environ.get(CONFIG_ENV) or argument or DEFAULT_CONFIG)


def load_settings(path: Path) -> Settings:
    """Settings of a YAML file. Raises `SettingsError`."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise SettingsError(f"{path}: the file cannot be read ({failure.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as failure:
        reason = str(failure).replace("\n", " ")
        raise SettingsError(f"{path}: the file is not valid YAML ({reason})") from None
    return parse_settings(document, str(path))


def parse_settings(document: Any, name: str) -> Settings:
    """Settings of a parsed document; `name` says in errors where it came from."""
    if not isinstance(document, dict):
        raise SettingsError(f"{name}: the file must hold a mapping of sections")
    try:
        return Settings.model_validate(document)
    except ValidationError as failure:
        lines = [explain(error, Settings) for error in failure.errors()]
        raise SettingsError("\n".join(f"{name}: {line}" for line in lines)) from None
