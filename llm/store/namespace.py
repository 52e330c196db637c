"""What must be equal for two engines to read each other's KV, as one digest.

The hash chain that names a page is over token ids alone. Another checkpoint, number type, layout,
page size, split over devices or number of draft layers gives other bytes for the same ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

# Checkpoints up to this size are read whole, which takes about a second.
WHOLE_BYTES = 2**30
_SAMPLES = 256
_SAMPLE_BYTES = 4096


def digest_of(facts: Mapping[str, Any]) -> bytes:
    """32 bytes that identify plain data, whatever the order of its keys."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return blake2b(text.encode(), digest_size=32).digest()


def weights_identity(checkpoint: Path, whole_bytes: int = WHOLE_BYTES) -> str:
    """Hexadecimal digest of a checkpoint's configuration and weights.

    Files of up to ``whole_bytes`` together are read whole. Of larger checkpoints every file counts
    with its length, its tensor table and 256 evenly spaced samples of 4 KiB, which training or
    another quantisation always changes. Raises FileNotFoundError without a configuration and
    weights.
    """
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{checkpoint} holds no *.safetensors files")
    whole = sum(file.stat().st_size for file in files) <= whole_bytes
    state = blake2b(digest_size=32)
    for file in [checkpoint / "config.json", *files]:
        size = file.stat().st_size
        state.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            if whole or file.suffix == ".json":
                while block := stream.read(2**22):
                    state.update(block)
            else:
                state.update(stream.read(_table_bytes(stream)))
                for i in range(_SAMPLES):
                    stream.seek(i * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
                    state.update(stream.read(_SAMPLE_BYTES))
    return state.hexdigest()


def _table_bytes(stream: BinaryIO) -> int:
    """Length of a safetensors file's table of tensors."""
    return int.from_bytes(stream.read(8), "little")
