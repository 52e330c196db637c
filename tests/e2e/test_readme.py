"""The README's examples, run as they stand against the running application."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from bench.application import ROOT, Application

pytestmark = pytest.mark.engine

BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
CURL = [code for kind, code in BLOCKS if kind == "bash" and code.startswith("curl")]
(PRINTED,) = [code.splitlines() for kind, code in BLOCKS if kind == "text"]
PYTHON = [code for kind, code in BLOCKS if kind == "python"]


def here(code: str, running: Application) -> str:
    assert "http://127.0.0.1:8000" in code
    return code.replace("http://127.0.0.1:8000", running.url)


@pytest.mark.parametrize(
    "code", CURL, ids=lambda c: "streamed" if '"stream": true' in c else "whole"
)
def test_curl(running: Application, code: str) -> None:
    done = subprocess.run(
        ["bash", "-c", here(code, running)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if '"stream": true' in code:
        assert done.stdout.rstrip().endswith("data: [DONE]")
        json.loads(done.stdout.split("\n\n")[0].removeprefix("data: "))
    else:
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("code", PYTHON)
def test_python(
    running: Application,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    scope: dict[str, Any] = {}
    exec(compile(here(code, running), "README.md", "exec"), scope)
    assert capsys.readouterr().out.splitlines() == 2 * PRINTED


def test_there_are_examples() -> None:
    assert len(CURL) >= 2
    assert len(PYTHON) >= 1
    assert len(PRINTED) >= 5
