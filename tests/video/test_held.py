from __future__ import annotations

import asyncio
import os

from video.held import FILES, HeldFiles
from video.shared import Held, view


async def test_files_are_held_until_idle_or_pushed_out():
    files = HeldFiles(idle_seconds=0.05)
    first = await files.get("a", memoryview(b"first"))
    assert "a" not in files  # what was copied is held only when it is to be kept
    files.keep("a", first)
    assert await files.get("a", memoryview(b"first")) is first
    for number in range(FILES):
        files.keep(str(number), Held(b"x"))
    assert "a" not in files
    assert len(files) == FILES
    assert bytes(view(os.dup(first.descriptor), first.size)) == b"first"  # its user has it still
    await asyncio.sleep(0.2)
    assert len(files) == 0


async def test_every_use_puts_off_the_end():
    files = HeldFiles(idle_seconds=0.2)
    held = Held(b"x")
    files.keep("a", held)
    for _ in range(6):
        await asyncio.sleep(0.05)
        assert await files.get("a", memoryview(b"x")) is held
    files.clear()
    assert len(files) == 0


def test_descriptors_are_closed():
    before = len(os.listdir("/proc/self/fd"))
    held = Held(b"some bytes")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del held
    assert len(os.listdir("/proc/self/fd")) == before
