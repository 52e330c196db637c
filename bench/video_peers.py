"""Other ways to read frames of a clip, each in a process of its own so that they share nothing.

`python -m bench.video_peers NAME PATH HEIGHT WIDTH` reads frame numbers as JSON lines from its
input and answers each with the seconds it took to get these frames as uint8 RGB of that size.

PyAV is the application's own. The others are optional: they are looked for in the environment and
in `build/peers`, where `pip install --no-deps --target build/peers torchcodec decord` puts them.
torchcodec needs libav's libraries: those of PyAV's wheel are offered to it, so that both run the
same decoder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

PEERS = Path(__file__).parent.parent / "build" / "peers"
LIBRARIES = PEERS / "libav"

Read = Callable[[Sequence[int]], np.ndarray]
"""Ascending frame numbers -> uint8 [n, height, width, 3]."""

NAMES = (
    "pyav_auto",
    "pyav_default",
    "decord_1",
    "decord_2",
    "torchcodec_1_exact",
    "torchcodec_2_exact",
    "torchcodec_1_approximate",
    "torchcodec_2_approximate",
)


class Peer:
    """A running reader of one clip."""

    def __init__(self, name: str, path: Path, size: tuple[int, int]) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent.parent}:{PEERS}"}
        if name.startswith("torchcodec"):
            environment["LD_LIBRARY_PATH"] = str(_libraries())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.video_peers", name, str(path), *map(str, size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{name} does not start")

    def seconds(self, numbers: Sequence[int]) -> float:
        """How long the frames took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(numbers)) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def installed(name: str) -> bool:
    """Whether the package that `name` needs is there."""
    package = name.partition("_")[0]
    return package == "pyav" or (PEERS / package).is_dir() or find_spec(package) is not None


def _libraries() -> Path:
    """PyAV's libav under the names that torchcodec asks for."""
    import av

    LIBRARIES.mkdir(parents=True, exist_ok=True)
    for library in (Path(av.__file__).parent.parent / "av.libs").glob("lib*.so.*"):
        short = (
            library.name.partition("-")[0] + ".so." + library.name.split(".so.")[1].split(".")[0]
        )
        for name in (library.name, short):
            if not (LIBRARIES / name).exists():
                (LIBRARIES / name).symlink_to(library)
    return LIBRARIES


def _pyav(path: str, size: tuple[int, int], auto: bool) -> Read:
    import av
    from av.video.reformatter import Interpolation

    def read(numbers: Sequence[int]) -> np.ndarray:
        wanted, found = set(numbers), []
        with av.open(path) as container:
            stream = container.streams.video[0]
            if auto:
                stream.thread_type = "AUTO"
            for number, frame in enumerate(container.decode(stream)):
                if number in wanted:
                    scaled = frame.reformat(
                        size[1], size[0], "rgb24", interpolation=Interpolation.BILINEAR
                    )
                    found.append(scaled.to_ndarray())
                if len(found) == len(wanted):
                    break
        return np.stack(found)

    return read


def _decord(path: str, size: tuple[int, int], threads: int) -> Read:
    import decord

    def read(numbers: Sequence[int]) -> np.ndarray:
        reader = decord.VideoReader(path, width=size[1], height=size[0], num_threads=threads)
        frames: np.ndarray = reader.get_batch(list(numbers)).asnumpy()
        return frames

    return read


def _torchcodec(path: str, size: tuple[int, int], threads: int, mode: Any) -> Read:
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize

    def read(numbers: Sequence[int]) -> np.ndarray:
        decoder = VideoDecoder(
            path,
            dimension_order="NHWC",
            num_ffmpeg_threads=threads,
            seek_mode=mode,
            transforms=[Resize(size)],
        )
        frames: np.ndarray = decoder.get_frames_at(list(numbers)).data.numpy()
        return frames

    return read


def reader(name: str, path: str, size: tuple[int, int]) -> Read:
    package, *rest = name.split("_")
    if package == "pyav":
        return _pyav(path, size, rest == ["auto"])
    if package == "decord":
        return _decord(path, size, int(rest[0]))
    return _torchcodec(path, size, int(rest[0]), rest[1])


def main(name: str, path: str, height: str, width: str) -> None:
    read = reader(name, path, (int(height), int(width)))
    print("ready", flush=True)
    for line in sys.stdin:
        numbers = json.loads(line)
        start = time.perf_counter()
        frames = read(numbers)
        seconds = time.perf_counter() - start
        assert frames.shape == (len(numbers), int(height), int(width), 3)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
