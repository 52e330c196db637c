"""Work of worker threads on an accelerator, beside the forward pass instead of behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_streams = threading.local()


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Run the block's operations on a stream of this thread's own; they are done when it ends.

    On the default stream a copy to the device would wait for the forward pass that runs there. The
    block's tensors may be used on any stream afterwards, and must be held until that use is done. A
    device without streams runs the block as it is.
    """
    if device.type not in ("cuda", "xpu"):
        yield
        return
    backend: Any = getattr(torch, device.type)
    kept = getattr(_streams, "kept", None)
    if kept is None:
        kept = _streams.kept = {}
    stream = kept.get(device)
    if stream is None:
        stream = kept[device] = backend.Stream(device)
    with backend.stream(stream):
        yield
    stream.synchronize()
