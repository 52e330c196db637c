"""Seconds of each start-up phase of the whole application, engine included, until it is ready.

``total`` is what a user waits after ``make serve`` in an environment that is installed. The
phases of the engine's replica run inside the phase ``deployments``.
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.application import ROOT, own_serve_file
from bench.result import Bar, Figure, Result

# Runs in a process of its own, since a start imports, and stopping does not undo that.
_ONCE = """
import json, sys, time
began = time.perf_counter()
from app import serve as app_serve
from app.local_ray import prepare_environment
from app.serve_file import read_serve_file
from app.settings import config_path, load_settings
from pathlib import Path
serve_file = read_serve_file(Path(sys.argv[1]))
settings = load_settings(config_path(serve_file.args.get("config")))
prepare_environment(settings.local)
phases = app_serve.Phases()
imported = time.perf_counter() - began
try:
    app_serve.start(serve_file, settings, phases)
    total = time.perf_counter() - began
    from ray import serve
    handle = serve.get_deployment_handle("LLM", serve_file.name)
    engine = handle.startup.remote().result(timeout_s=60)
finally:
    app_serve.stop()
print(json.dumps({"total": total, "own imports": imported, **phases.seconds,
                  **{f"engine replica: {k}": v for k, v in engine.items()}}))
"""


def run(quick: bool) -> Result:
    repeats = 1 if quick else 5
    readings: dict[str, list[float]] = {}
    for _ in range(repeats):
        for phase, seconds in _once().items():
            readings.setdefault(phase, []).append(seconds)
    figures: dict[str, Figure | float] = {
        f"{phase} (s)": Figure.of(seconds) for phase, seconds in readings.items()
    }
    total = Figure.of(readings["total"]).median
    return Result({"starts": repeats}, figures, {"seconds_to_ready": Bar(total, at_most=40.0)})


def _once() -> dict[str, float]:
    with own_serve_file() as (path, _):
        done = subprocess.run(
            [sys.executable, "-c", _ONCE, str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=400,
        )
    if done.returncode:
        raise RuntimeError("the application did not start:\n" + done.stderr[-4000:])
    phases: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return phases
