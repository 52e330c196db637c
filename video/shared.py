"""Big arrays between processes without copies: anonymous shared memory, passed as descriptors.

Nothing has a name, so nothing is left behind when a process is killed: memory lives as long as
somebody maps it. It does not count against /dev/shm, which containers keep small.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np

FILE = "video-file"
"""Name of the memory that holds a file's bytes."""


@dataclass(frozen=True)
class Packed:
    """A pickled object whose large buffers lie in shared memory. The descriptors travel apart."""

    pickled: bytes
    buffers: list[bytes | tuple[int, int, int]]
    """Each either inline, or (descriptor, offset, length)."""
    sizes: list[int]
    """Bytes of each descriptor's memory."""


class Arena:
    """Allocates arrays in shared memory and packs objects that hold them."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, int]] = []  # descriptor, address, bytes

    def allocate(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """A zeroed array of that shape."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size == 0:
            return np.zeros(shape, dtype)
        descriptor = create(size)
        array = np.frombuffer(mmap.mmap(descriptor, size), dtype).reshape(shape)
        self._blocks.append((descriptor, array.ctypes.data, size))
        return array

    def pack(self, value: object) -> tuple[Packed, list[int]]:
        """The object and the descriptors to send along; both belong to the arena until `close`."""
        found: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=found.append)
        buffers = [self._locate(buffer.raw()) for buffer in found]
        return Packed(pickled, buffers, [b[2] for b in self._blocks]), [b[0] for b in self._blocks]

    def _locate(self, raw: memoryview) -> bytes | tuple[int, int, int]:
        if raw.nbytes:
            address = np.frombuffer(raw, np.uint8).ctypes.data
            for number, (_, start, size) in enumerate(self._blocks):
                if start <= address < start + size:
                    return number, address - start, raw.nbytes
        return bytes(raw)

    def close(self) -> None:
        """Closes the descriptors; arrays already made stay valid."""
        for descriptor, _, _ in self._blocks:
            os.close(descriptor)
        self._blocks.clear()


def unpack(packed: Packed, descriptors: list[int]) -> Any:
    """The object, its large arrays writable views of the shared memory; closes the descriptors."""
    blocks = []
    for descriptor, size in zip(descriptors, packed.sizes, strict=True):
        blocks.append(memoryview(mmap.mmap(descriptor, size)))
        os.close(descriptor)
    buffers = [
        b if isinstance(b, bytes) else blocks[b[0]][b[1] : b[1] + b[2]] for b in packed.buffers
    ]
    return pickle.loads(packed.pickled, buffers=buffers)


def create(size: int, name: str = "video-result") -> int:
    """A descriptor of `size` zero bytes of anonymous memory; the name is for `/proc` alone."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Held:
    """A copy of some bytes in anonymous memory, for as long as this object lives."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.descriptor = share(data)
        self.size = memoryview(data).nbytes

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def share(data: bytes | memoryview | Held) -> int:
    """A descriptor of anonymous memory that holds a copy of the bytes."""
    if isinstance(data, Held):
        return os.dup(data.descriptor)
    descriptor = create(0, FILE)
    view = memoryview(data).cast("B")
    at = 0
    while at < len(view):
        at += os.write(descriptor, view[at : at + (1 << 30)])
    return descriptor


def view(descriptor: int, size: int) -> memoryview:
    """Read-only bytes behind a descriptor, which is closed."""
    try:
        if size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
