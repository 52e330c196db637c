"""An engine in a process of its own: SGLang keeps its configuration per process, so two engines
that differ cannot share one."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any


class EngineProcess:
    """Starts at once; ``wait`` blocks until it runs.

    ``settings``: see ``engine_arguments``; ``threads`` of PyTorch, as the application sets them.
    """

    def __init__(self, settings: dict[str, Any], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, settings, threads))
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Raises RuntimeError when the engine does not start."""
        self._receive()

    def call(self, method: str, **arguments: Any) -> tuple[float, Any]:
        """Seconds and result of a method of the engine, timed on its side of the pipe.

        Raises RuntimeError with the engine's error.
        """
        self._pipe.send((method, arguments))
        return self._receive()

    def stop(self) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()

    def _receive(self) -> tuple[float, Any]:
        try:
            seconds, result, error = self._pipe.recv()
        except EOFError:
            raise RuntimeError("the engine's process has ended") from None
        if error is not None:
            raise RuntimeError(error)
        return seconds, result


def _serve(pipe: Connection, settings: dict[str, Any], threads: int) -> None:
    # Read when PyTorch is imported, which is below.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    from llm import engine
    from llm.arguments import engine_arguments

    running: Any = None
    try:
        engine.prepare(settings)
        running = engine.start(engine_arguments(settings))
        pipe.send((0.0, None, None))
        while (asked := pipe.recv()) is not None:
            method, arguments = asked
            began = time.perf_counter()
            result = getattr(running, method)(**arguments)
            pipe.send((time.perf_counter() - began, result, None))
    except EOFError:
        pass
    except Exception as error:
        pipe.send((0.0, None, f"{type(error).__name__}: {error}"))
    finally:
        if running is not None:
            running.shutdown()
