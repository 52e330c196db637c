"""Starting SGLang's engine inside a process that is not its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any

from llm.arguments import pool_choice
from llm.version import check_sglang_version

_PRELOAD = [
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.model_executor.model_runner",
    "llm.models.mimo_v2",
    "llm.models.mimo_v2_mtp",
]


def prepare(settings: dict[str, Any]) -> None:
    """Set what SGLang reads at import, and on a CPU start importing its subprocesses' modules.

    Call before anything imports SGLang. Most of a start on a CPU is Python imports, which the
    API process, scheduler and detokenizer would each do alone. Instead a fork server imports
    them once, next to this process's own imports, and both subprocesses fork from it. It only
    imports: it has one thread and no open device when it forks.
    """
    check_sglang_version()
    os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "llm.models"
    os.environ["SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE"] = "llm.processors"
    os.environ["SGLANG_SWA_EVICTION_INTERVAL"] = str(pool_choice(settings).interval)
    if settings["device"] == "cpu":
        # Compiling the router's top-k on the first request would cost it seconds.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        multiprocessing.set_forkserver_preload(_PRELOAD)
        forkserver.ensure_running()


def start(arguments: dict[str, Any]) -> Any:
    """The running Engine (SGLang's class). Blocks until the model is loaded.

    Works in any thread. Raises RuntimeError when the engine's processes die while starting.
    """
    from sglang.srt.entrypoints.engine import Engine

    with _any_thread(), _without_main(), _forked(arguments["device"] == "cpu"):
        return Engine(**arguments)


@contextmanager
def _any_thread() -> Iterator[None]:
    """SGLang installs signal handlers, which Python allows in the main thread only; a Serve
    replica's signals belong to Ray anyway."""
    installed = signal.signal
    signal.signal = lambda *args, **kwargs: None
    try:
        yield
    finally:
        signal.signal = installed


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep subprocesses from importing this process's main module (in a replica, Ray's
    worker), as Python's start methods would have them do; they run SGLang's functions only."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _forked(enabled: bool) -> Iterator[None]:
    """Let SGLang's request for the ``spawn`` start method select the fork server."""
    if not enabled:
        yield
        return
    select = multiprocessing.set_start_method
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method = lambda method, force=False: select(
        "forkserver" if method == "spawn" else method, force=force
    )
    try:
        yield
    finally:
        multiprocessing.set_start_method = select
        select(before, force=True)
