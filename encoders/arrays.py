"""numpy arrays as torch tensors without a copy, read-only ones included."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def tensor_view(array: np.ndarray) -> torch.Tensor:
    """A CPU tensor over the array's memory (copied first if it is not C-contiguous).

    Arrays out of Ray's object store and Pillow are read-only, which torch cannot express: it would
    warn at every conversion. Callers must not write to the tensor.
    """
    import torch

    array = np.ascontiguousarray(array)
    if array.flags.writeable:
        return torch.from_numpy(array)
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array  # type: ignore[attr-defined]  # keeps the memory alive
    flat = np.frombuffer(memoryview(memory).cast("B"), array.dtype)
    return torch.from_numpy(flat.reshape(array.shape))
