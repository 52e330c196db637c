"""Embeddings between processes of a node: files in shared memory against Ray's object store.

One process writes, another reads every byte, both Ray actors; rounds alternate between the two
stores. To the engine, which is no process of Ray's, rows out of the object store are copied into
shared memory as SGLang does; rows of a file are mapped. At the end the writer is killed.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from multiprocessing import shared_memory
from typing import Any

import numpy as np

from app.local_ray import prepare_environment, start_ray
from app.settings import config_path, load_settings
from bench.result import Bar, Figure, Result
from encoders.embedding import Embedding, RowsArray, image_layout
from encoders.store import RowsLost, Store

# Rows and hidden size: a thumbnail and a large image of the pocket model, one of MiMo-V2.5.
SIZES = {"pocket_20": (20, 192), "pocket_1024": (1024, 192), "full_1024": (1024, 4096)}
BUDGET = 256 << 20


def run(quick: bool) -> Result:
    import ray

    rounds = 10 if quick else 60
    prepare_environment(load_settings(config_path(None)).local)
    start_ray(load_settings(config_path(None)).local)
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            return _measure(f"{folder}/omniserve-bench", rounds)
    finally:
        ray.shutdown()


def _measure(directory: str, rounds: int) -> Result:
    import ray

    writer, reader = (ray.remote(num_cpus=0)(_Process).remote(directory) for _ in range(2))
    readings: dict[str, list[float]] = {}
    for size, (rows, hidden) in SIZES.items():
        for index in range(-2, rounds):
            for kind in ("file", "ray"):
                key, seconds = ray.get(
                    writer.write.remote(kind, f"{hidden}x{rows}x{index + 2}", rows, hidden)
                )
                read, engine = ray.get(reader.read.remote(kind, key))
                if index >= 0:
                    for what, value in (("write", seconds), ("read", read), ("engine", engine)):
                        name = f"{size}_{kind}_{what}_ms"
                        readings.setdefault(name, []).append(value * 1e3)
    survivors = _kill_and_count(writer, reader)
    return Result(
        {"rounds": rounds, "rows_hidden": {k: list(v) for k, v in SIZES.items()}},
        {**{name: Figure.of(values) for name, values in readings.items()}, **survivors},
        {"file_survives_writer": Bar(survivors["file_survives_writer"], at_least=1.0)},
    )


def _kill_and_count(writer: Any, reader: Any) -> dict[str, float]:
    """Which share of eight fresh embeddings of each kind a reader finds without their writer."""
    import ray

    kinds = ("file", "ray")
    keys = {
        kind: [ray.get(writer.write.remote(kind, f"k{i}", 20, 192))[0] for i in range(8)]
        for kind in kinds
    }
    os.kill(ray.get(writer.pid.remote()), signal.SIGKILL)
    time.sleep(1.0)
    found: dict[str, float] = {}
    for kind in kinds:
        alive = [ray.get(reader.finds.remote(kind, key)) for key in keys[kind]]
        found[f"{kind}_survives_writer"] = sum(alive) / len(alive)
    return found


class _Process:
    """A process of the node, as an actor."""

    def __init__(self, directory: str) -> None:
        self._store = Store(directory, BUDGET)
        self._held: list[Any] = []

    def pid(self) -> int:
        return os.getpid()

    def write(self, kind: str, name: str, rows: int, hidden: int) -> tuple[Any, float]:
        """Keep new rows; their key, and the seconds that took."""
        import ray

        data = RowsArray(np.random.default_rng().random((rows, hidden), np.float32), "float32")
        start = time.perf_counter()
        if kind == "file":
            self._store.put(Embedding("image", name, image_layout(rows), data), 1.0)
            key: Any = name
        else:
            # In a list, or Ray would resolve it; held, as a cache of references would.
            key = [ray.put(data)]
            self._held = [*self._held[-20:], key]
        return key, time.perf_counter() - start

    def read(self, kind: str, key: Any) -> tuple[float, float]:
        """Seconds to read all rows here, and to hand them to a process outside of Ray."""
        import ray

        start = time.perf_counter()
        if kind == "file":
            with self._store.open(key) as lease:
                data = lease.rows().data
        else:
            data = ray.get(key[0]).data
        data.sum()
        read = time.perf_counter() - start
        start = time.perf_counter()
        if kind == "file":
            with self._store.open(key) as lease:
                lease.rows()
        else:
            block = shared_memory.SharedMemory(create=True, size=data.nbytes)
            assert block.buf is not None
            np.copyto(np.frombuffer(block.buf, data.dtype, data.size).reshape(data.shape), data)
            block.close()
            block.unlink()
        return read, time.perf_counter() - start

    def finds(self, kind: str, key: Any) -> bool:
        """Whether the rows are there."""
        import ray

        try:
            if kind == "file":
                self._store.open(key).close()
            else:
                ray.get(key[0], timeout=10)
        except (RowsLost, ray.exceptions.RayError):
            return False
        return True
