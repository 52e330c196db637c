"""SGLang's own HTTP server on the same checkpoint and arguments: the other side of benchmarks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

# Runs SGLang's server with our engine arguments; its own start method and signal handling.
_PROGRAM = """
import json, sys
if __name__ == "__main__":
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import ServerArgs
    launch_server(ServerArgs(**json.loads(sys.argv[1])))
"""


@contextmanager
def sglang_server(arguments: dict[str, Any], timeout_s: float = 180.0) -> Iterator[str]:
    """Base URL of a running server; ``arguments`` as for SGLang's Engine.

    Raises RuntimeError with the end of its output when it exits, TimeoutError when it is late.
    """
    import json
    import tempfile

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "llm.models",
        "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE": "llm.processors",
    }
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/serve.py"
        with open(program, "w") as file:
            file.write(_PROGRAM)
        log = open(f"{folder}/log", "w+")  # noqa: SIM115
        server = subprocess.Popen(
            [
                sys.executable,
                program,
                json.dumps(
                    # Its warm-up sends a picture, which this engine does not take.
                    arguments | {"host": "127.0.0.1", "port": port, "skip_server_warmup": True}
                ),
            ],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(url, server, timeout_s, log)
            yield url
        finally:
            server.terminate()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, 9)
                server.wait()
            log.close()


def _wait(url: str, server: subprocess.Popen[bytes], timeout_s: float, log: Any) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.poll() is not None:
            log.seek(0)
            raise RuntimeError("SGLang's server ended:\n" + log.read()[-2000:])
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.25)
    raise TimeoutError(f"SGLang's server was not healthy after {timeout_s:.0f} s")
