"""SGLang's own HTTP server on the same checkpoint and arguments: the other side of benchmarks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.waiting import free_port, wait_for_ok

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
    port = free_port()
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
            wait_for_ok(
                f"{url}/health",
                server,
                timeout_s,
                "SGLang's server",
                Path(log.name).read_text,
            )
            yield url
        finally:
            server.terminate()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, 9)
                server.wait()
            log.close()
