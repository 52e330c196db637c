"""The application as a user starts it, in a process of its own, for benchmarks and tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.waiting import free_port, wait_for_ok

ROOT = Path(__file__).parent.parent


@dataclass
class Application:
    """A running application: its address, process and output so far."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    seconds_to_ready: float

    def output(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def application(config: str | None = None, timeout_s: float = 300.0) -> Iterator[Application]:
    """Run ``serve.yaml`` on a free port until the block ends, with ``config`` if given.

    Ready means that ``GET /ready`` answers 200. Raises RuntimeError with the end of its output
    when it exits before, TimeoutError when it is late. Ends only what it started.
    """
    with own_serve_file(config) as (serve_file, port):
        log = serve_file.with_name("log")
        start = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "app.serve", str(serve_file)],
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = Application(f"http://127.0.0.1:{port}", process, log, 0.0)
        try:
            wait_for_ok(
                f"{running.url}/ready", process, timeout_s, "the application", running.output
            )
            running.seconds_to_ready = time.monotonic() - start
            yield running
        finally:
            _stop(process)


@contextmanager
def own_serve_file(config: str | None = None) -> Iterator[tuple[Path, int]]:
    """A copy of ``serve.yaml`` with a free port (and ``config``), and that port."""
    port = free_port()
    document = yaml.safe_load((ROOT / "serve.yaml").read_text())
    document["http_options"]["port"] = port
    if config is not None:
        document["applications"][0]["args"]["config"] = config
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve.yaml"
        path.write_text(yaml.safe_dump(document))
        yield path, port


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask as Ctrl-C does; then end the process group, which holds everything it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
