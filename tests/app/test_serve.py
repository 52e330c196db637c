"""Starting: the serve file, mistakes in sentences, the proxy's bound. No Ray is started here."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.local_ray import prepare_environment
from app.proxy import BodyBound, middlewares
from app.serve_file import read_serve_file
from app.settings import ROOT, SettingsError
from tests.app.fakes import settings


def test_the_shipped_serve_file() -> None:
    found = read_serve_file(ROOT / "serve.yaml")
    assert found.url == "http://127.0.0.1:8000"
    assert (found.import_path, found.args) == (
        "app.builder:build",
        {"config": "configs/pocket.yaml"},
    )


def test_the_shipped_serve_file_is_one_that_serve_accepts() -> None:
    from ray.serve.schema import ServeDeploySchema

    document = yaml.safe_load((ROOT / "serve.yaml").read_text())
    schema = ServeDeploySchema.model_validate(document)
    assert schema.http_options.host == "127.0.0.1"
    assert schema.applications[0].import_path == "app.builder:build"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("applications: [", "not valid YAML"),
        ("[]", "list of one application"),
        ("applications: []", "list of one application"),
        ("applications: [{}]", "needs an 'import_path'"),
        ("applications: [{import_path: a:b, args: 3}]", "must be mappings"),
    ],
)
def test_damaged_serve_files(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=reason):
        read_serve_file(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_serve_file(tmp_path / "none.yaml")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "app.serve", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_mistake_in_the_settings_is_told_without_a_traceback(tmp_path: Path) -> None:
    document = yaml.safe_load((ROOT / "configs/pocket.yaml").read_text())
    document["images"]["max_pixels"] = 5
    config = tmp_path / "broken.yaml"
    config.write_text(yaml.safe_dump(document))
    done = run(OMNISERVE_CONFIG=str(config))
    assert done.returncode == 2
    assert done.stderr == (
        f"omniserve: {config}: images.max_pixels is 5; "
        "it must be a whole number from 1024 to 1000000000\n"
    )


def test_a_port_in_use_is_told_without_a_traceback(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        document = yaml.safe_load((ROOT / "serve.yaml").read_text())
        document["http_options"]["port"] = taken.getsockname()[1]
        path = tmp_path / "serve.yaml"
        path.write_text(yaml.safe_dump(document))
        done = run(str(path))
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_lean_start_leaves_out_exists_in_this_ray() -> None:
    from ray._private import node, services

    assert callable(services.start_api_server)
    assert callable(node.Node.start_monitor)
    assert callable(node.Node.start_log_monitor)


def test_the_environment_keeps_what_the_user_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ["OMP_NUM_THREADS"] = "7"
    os.environ.pop("MKL_NUM_THREADS", None)
    prepare_environment(settings().local)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert os.environ["MKL_NUM_THREADS"] == "1"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


async def test_the_proxy_stops_reading_above_the_bound() -> None:  # case 17
    taken = 0

    async def endless() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    async def greedy(scope: Any, receive: Any, send: Any) -> None:
        while True:
            await receive()

    bound = BodyBound(greedy, max_bytes=1000)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bound({"type": "http"}, endless, None), 0.1)
    assert taken == 11


async def through_the_proxy(messages: list[dict[str, Any]], count: int) -> list[Any]:
    """The first `count` messages behind the bound."""
    inbox = iter(messages)
    seen: list[Any] = []

    async def receive() -> Any:
        return next(inbox)

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([await receive() for _ in range(count)])

    await BodyBound(reads, max_bytes=4 << 20)({"type": "http"}, receive, None)
    return seen


def piece(data: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def test_the_proxy_joins_the_pieces_of_a_body() -> None:
    end = {"type": "http.disconnect"}
    seen = await through_the_proxy(
        [piece(b"ab", True), piece(b"cd", True), piece(b"", False), end], 2
    )
    assert seen == [piece(b"abcd", False), end]


async def test_the_proxy_hands_a_large_body_on_while_it_comes() -> None:
    large = b"x" * (1 << 20)
    seen = await through_the_proxy([piece(large, True), piece(b"y", True), piece(b"z", False)], 2)
    assert seen == [piece(large + b"y", True), piece(b"z", False)]


async def test_a_client_that_leaves_in_the_middle_of_a_body_is_seen_at_once() -> None:
    end = {"type": "http.disconnect"}
    assert await through_the_proxy([piece(b"ab", True), end], 1) == [end]


def test_the_proxys_bound_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNISERVE_CONFIG", str(ROOT / "configs/pocket.yaml"))
    (middleware,) = middlewares()
    assert middleware.kwargs == {"max_bytes": 2 * 64 * 2**20}
