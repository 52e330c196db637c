"""What names a checkpoint: part of every media digest, so that models never share an embedding."""

from __future__ import annotations

from pathlib import Path

from encoders.digest import content_digest

# Bytes of each weights file that count, from its start and from its end: enough to tell two
# checkpoints of one shape apart, and little enough to read 150 files at start-up.
_SAMPLE = 64 * 1024


def checkpoint_identity(directory: Path) -> str:
    """64 hex characters that depend on the checkpoint's files, not on their path or dates.

    Configuration files count whole, weights by size and by samples of their bytes.
    """
    fields: list[object] = ["checkpoint"]
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.suffix == ".safetensors":
            fields.append([name, path.stat().st_size, _sampled(path)])
        elif path.name in ("config.json", "preprocessor_config.json"):
            fields.append([name, path.read_bytes()])
    return content_digest(*fields)


def _sampled(path: Path) -> bytes:
    """The start of the file (its header and first tensor), its middle and its end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        parts = []
        for start in (0, max(0, size // 2), max(0, size - _SAMPLE)):
            file.seek(start)
            parts.append(file.read(_SAMPLE))
    return b"".join(parts)
