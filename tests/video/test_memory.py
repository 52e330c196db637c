"""Memory stays with the frames that are wanted."""

from __future__ import annotations

import subprocess
import sys

from tests.video.clips import CLOSED, Clip, remux

PROGRAM = """
import resource, sys
from video.decode import decode_clip
from video.sampling import SamplingOptions
from video.source import Source

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def decode(path, frames):
    with open(path, "rb") as file:
        data = file.read()
    clip = decode_clip(Source(data), SamplingOptions(num_frames=frames), lambda *_: (96, 128))
    return clip.frames.shape

decode(sys.argv[1], 2)
base = peak()
shape = decode(sys.argv[2], int(sys.argv[3]))
print(shape[0], peak() - base)
"""


def grown(tmp_path, short: bytes, long: bytes, frames: int) -> tuple[int, int]:
    """(frames, bytes by which the peak grew) of decoding `long` after `short` in a new process."""
    paths = [tmp_path / "short", tmp_path / "long"]
    for path, data in zip(paths, (short, long), strict=True):
        path.write_bytes(data)
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, paths), str(frames)],
        capture_output=True,
        text=True,
        check=True,
    )
    count, growth = found.stdout.split()
    return int(count), int(growth)


def test_a_long_clip_with_few_wanted_frames(tmp_path):  # case 45
    short = Clip(60, 320, 240, options=CLOSED).encode()
    long = remux(short, loops=300)  # ten minutes; 4 GB when decoded
    count, growth = grown(tmp_path, short, long, 8)
    assert count == 8
    assert growth < 60e6 + 2 * len(long)


def test_one_endless_gop(tmp_path):  # case 45
    short = Clip(60, 320, 240, options=CLOSED).encode()
    options = {"preset": "ultrafast", "g": "9999", "x264-params": "scenecut=0"}
    long = Clip(900, 320, 240, options=options).encode()  # 200 MB when decoded, one key frame
    count, growth = grown(tmp_path, short, long, 200)
    assert count == 200
    assert growth < 30e6 + 200 * 96 * 128 * 3 + 2 * len(long)
