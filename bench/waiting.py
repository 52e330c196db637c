"""Waiting for a server in a process of our own."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable

import httpx


def free_port() -> int:
    """A TCP port on the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_ok(
    url: str,
    process: subprocess.Popen[bytes],
    timeout_s: float,
    what: str,
    output: Callable[[], str],
) -> None:
    """Return once ``GET url`` answers 200.

    Raises RuntimeError when ``process`` ends before and TimeoutError when it is late, both with
    the end of its output.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{what} ended:\n" + output()[-4000:])
        try:
            if httpx.get(url, timeout=10).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"{what} was not ready after {timeout_s:.0f} s:\n" + output()[-4000:])
