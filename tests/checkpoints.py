"""Random checkpoints shared by a whole test session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.pocket.init import write_checkpoint
from tools.pocket.spec import PocketSpec


@pytest.fixture(scope="session")
def pocket_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pocket geometry with random weights at full strength (wrong KV changes tokens)."""
    out = tmp_path_factory.mktemp("pocket")
    write_checkpoint(PocketSpec(), 7, out)
    return out
