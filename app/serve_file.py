"""Reading `serve.yaml`: Ray Serve's own format, of which one application is used here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from app.settings import SettingsError


@dataclass(frozen=True)
class ServeFile:
    """The parts of `serve.yaml` that starting needs."""

    host: str
    port: int
    http_options: dict[str, Any]
    proxy_location: str
    name: str
    route_prefix: str
    import_path: str
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where a client on this machine finds the application."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "localhost") else self.host
        return f"http://{host}:{self.port}{self.route_prefix.rstrip('/')}"


def read_serve_file(path: Path) -> ServeFile:
    """`serve.yaml` with one application. Raises `SettingsError`."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise SettingsError(f"{path}: the file cannot be read ({failure.strerror})") from None
    except yaml.YAMLError as failure:
        reason = str(failure).replace("\n", " ")
        raise SettingsError(f"{path}: the file is not valid YAML ({reason})") from None
    applications = document.get("applications") if isinstance(document, dict) else None
    if not isinstance(applications, list) or len(applications) != 1:
        raise SettingsError(f"{path}: 'applications' must be a list of one application")
    application = applications[0]
    if not isinstance(application, dict) or not isinstance(application.get("import_path"), str):
        raise SettingsError(f"{path}: the application needs an 'import_path'")
    args = application.get("args") or {}
    http = document.get("http_options") or {}
    if not isinstance(args, dict) or not isinstance(http, dict):
        raise SettingsError(f"{path}: 'args' and 'http_options' must be mappings")
    return ServeFile(
        host=str(http.get("host", "127.0.0.1")),
        port=int(http.get("port", 8000)),
        http_options=http,
        proxy_location=str(document.get("proxy_location", "EveryNode")),
        name=str(application.get("name", "default")),
        route_prefix=str(application.get("route_prefix", "/")),
        import_path=application["import_path"],
        args=args,
    )
