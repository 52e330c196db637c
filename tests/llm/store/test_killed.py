"""Writers killed in the middle of writes: every page that can be read afterwards is right."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from llm.store.store import NodeStore
from tests.llm.store.pages import empty, key, page

SIZE = 20_000
PAGES = 4000
_WRITER = """
import sys
from tests.llm.store.pages import entry
from tests.llm.store.test_killed import PAGES, SIZE, opened
from pathlib import Path
store = opened(Path(sys.argv[1]))
start = int(sys.argv[2])
print("ready", flush=True)
while True:
    store.put([entry(n % PAGES, SIZE) for n in range(start, start + 8)])
    start += 8
"""


def opened(root: Path) -> NodeStore:
    return NodeStore(
        memory=root / "memory", memory_bytes=2_000_000, disk=root / "disk", disk_bytes=8_000_000
    )


def writer(root: Path, start: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(root), str(start)], stdout=subprocess.PIPE, text=True
    )


def test_two_writers_killed_again_and_again(tmp_path: Path) -> None:
    draw = random.Random(5)
    survivors = 0
    for attempt in range(3):
        writers = [writer(tmp_path, attempt * 500), writer(tmp_path, attempt * 500 + 250)]
        for process in writers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0.1, 0.6))
        for process in writers:
            process.send_signal(signal.SIGKILL)
        for process in writers:
            assert process.wait() == -signal.SIGKILL
            assert process.stdout is not None
            process.stdout.close()

        store = opened(tmp_path)
        numbers = list(range(PAGES))
        there = store.find([key(n) for n in numbers])
        survivors += len(there)
        for number in numbers:
            room, views = empty(SIZE)
            if store.get([key(number)], [views])[0]:
                assert bytes(room) == page(number, SIZE)
        assert store.put([(key(PAGES), [memoryview(b"x" * SIZE)])]) == [True]
        store.check(deep=True)
        for tier in store.tiers.values():
            assert not tier.counters.errors
        store.close()
    assert survivors > 0
