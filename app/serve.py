"""`python -m app.serve [serve.yaml]`: start the application, say when it is ready, stop on Ctrl-C.

The same application as `serve run serve.yaml`, with a leaner local Ray, mistakes in the settings
told in sentences, and the time of each start-up phase.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from app.local_ray import prepare_environment, start_ray
from app.serve_file import ServeFile, read_serve_file
from app.settings import CONFIG_ENV, Settings, SettingsError, config_path, load_settings
from app.settings.checks import check_model, read_model_config
from app.settings.load import resolve_path
from encoders.store.directory import sweep


class StartError(RuntimeError):
    """The application cannot start; the text says why and what to do."""


class Phases:
    """Seconds of each start-up phase."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        """The phase that ran since the last call is over."""
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        return self._last - self._began

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())


def main(arguments: list[str]) -> int:
    """Run until interrupted; returns the exit status."""
    phases = Phases()
    _stop_on_signals()
    try:
        serve_file = read_serve_file(resolve_path(arguments[0] if arguments else "serve.yaml"))
        path = config_path(serve_file.args.get("config"))
        settings = load_settings(path)
        check_model(settings, read_model_config(settings))
        # Serve's proxies read the settings too (`app.proxy`).
        os.environ[CONFIG_ENV] = str(path.resolve())
        _check_port(serve_file)
        prepare_environment(settings.local)
    except (SettingsError, StartError) as failure:
        print(f"omniserve: {failure}", file=sys.stderr)
        return 2
    print(f"Starting {settings.model.served_name} with {path} ...", flush=True)
    try:
        start(serve_file, settings, phases)
        print(_greeting(serve_file, settings, phases), flush=True)
        while True:
            signal.pause()
    except KeyboardInterrupt:
        print("\nStopping ...", flush=True)
        return 0
    except StartError as failure:
        print(f"omniserve: {failure}", file=sys.stderr)
        return 1
    finally:
        stop()
        # Replicas are killed, so none of them has removed the store it used.
        sweep(Path(settings.embeddings.directory))


def start(serve_file: ServeFile, settings: Settings, phases: Phases) -> None:
    """Start Ray, Serve and the application, and wait until every stage is ready."""
    started = start_ray(settings.local)
    _stop_on_signals()  # Ray has put its own handler in place
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    phases.end("Ray" if started else "joining Ray")
    serve.start(http_options=serve_file.http_options, proxy_location=serve_file.proxy_location)
    phases.end("Serve")
    application = _built(serve_file)
    try:
        serve.run(application, name=serve_file.name, route_prefix=serve_file.route_prefix)
    except RuntimeError as failure:
        raise StartError(f"{_reasons(serve_file.name) or failure}{_logs()}") from None
    phases.end("deployments")
    _wait_until_ready(serve_file, settings.local.startup_timeout_s)
    phases.end("warm-up")


def stop() -> None:
    """Stop the application and the Ray that was started for it."""
    import ray
    from ray import serve

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends it at once
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    # Serve's controller is killed while Ray still waits for it, which Ray reports as an error.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        if ray.is_initialized():
            serve.shutdown()
        ray.shutdown()


def _built(serve_file: ServeFile) -> Any:
    from ray._common.utils import import_attr

    return import_attr(serve_file.import_path)(serve_file.args)


def _reasons(application: str) -> str:
    """Why deployments did not start: the last line of each one's own message."""
    from ray import serve

    lines = []
    for name, status in serve.status().applications[application].deployments.items():
        message = status.message.strip()
        if message and status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            lines.append(f"{name} did not start: {message.splitlines()[-1].strip()}")
    return "\n".join(lines)


def _wait_until_ready(serve_file: ServeFile, timeout_s: float) -> None:
    import httpx

    deadline = time.monotonic() + timeout_s
    answer = "no answer"
    while time.monotonic() < deadline:
        try:
            response = httpx.get(f"{serve_file.url}/ready", timeout=30.0, trust_env=False)
        except httpx.HTTPError as failure:
            answer = type(failure).__name__
        else:
            if response.status_code == 200:
                return
            answer = response.text
        time.sleep(0.2)
    raise StartError(f"not ready after {timeout_s:g} s: {answer}{_logs()}")


def _check_port(serve_file: ServeFile) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((serve_file.host, serve_file.port))
        except OSError as failure:
            raise StartError(
                f"cannot listen on {serve_file.host}:{serve_file.port} ({failure.strerror}); "
                "stop what runs there, or change http_options.port in serve.yaml"
            ) from None


def _greeting(serve_file: ServeFile, settings: Settings, phases: Phases) -> str:
    return f"""
Ready at {serve_file.url} after {phases.total:.1f} s ({phases}).

Ask the first question:

  curl {serve_file.url}/v1/chat/completions -H 'content-type: application/json' -d '{{
    "model": "{settings.model.served_name}",
    "messages": [{{"role": "user", "content": "What can you do?"}}]}}'

The OpenAI client works too: OpenAI(base_url="{serve_file.url}/v1", api_key="none").
Logs: {_log_directory()}. Ctrl-C stops it.
"""


def _log_directory() -> str:
    import ray

    return f"{ray._private.worker._global_node.get_session_dir_path()}/logs/serve"


def _logs() -> str:
    return f"\nThe logs are in {_log_directory()}."


def _stop_on_signals() -> None:
    """End as Ctrl-C does, also where a shell has told us to ignore it (started with `&`)."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
