"""The application as ``serve.yaml`` defines it, started once for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from bench.application import Application, application


@pytest.fixture(scope="session")
def running() -> Iterator[Application]:
    with application() as started:
        yield started


@pytest.fixture
def client(running: Application) -> OpenAI:
    return OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=120)
