"""Reads tensors by name from a directory of safetensors files, with or without an index.

Shared by the vision tower and the audio encoder. Every fault names the tensor or file, and for
shapes both the expected and the found one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

INDEX_NAME = "model.safetensors.index.json"
_SHOWN_FAULTS = 5


class CheckpointError(ValueError):
    """A checkpoint that lacks a file or tensor, or holds one of the wrong shape."""


class Checkpoint:
    """The tensors of one checkpoint directory.

    With `model.safetensors.index.json` its `weight_map` says which file holds which tensor;
    without one, every `*.safetensors` file in the directory is read. Files are memory-mapped and
    tensors are read only when asked for.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._handles: dict[str, Any] = {}
        self._files = self._read_index() if self._index.is_file() else self._read_headers()

    @property
    def _index(self) -> Path:
        return self.directory / INDEX_NAME

    def _read_index(self) -> dict[str, str]:
        try:
            weight_map = json.loads(self._index.read_text())["weight_map"]
            return {str(name): str(file) for name, file in weight_map.items()}
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{self._index}: no usable weight_map ({error})") from error

    def _read_headers(self) -> dict[str, str]:
        files = sorted(self.directory.glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"{self.directory}: neither {INDEX_NAME} nor a safetensors file")
        return {name: path.name for path in files for name in self._open(path.name).keys()}  # noqa: SIM118

    def _open(self, file: str) -> Any:
        if file not in self._handles:
            path = self.directory / file
            try:
                self._handles[file] = safe_open(path, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: cannot be read as safetensors ({error})") from error
        return self._handles[file]

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def names(self, prefix: str = "") -> list[str]:
        """Sorted names of the tensors that start with `prefix`."""
        return sorted(name for name in self._files if name.startswith(prefix))

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor `name` on the CPU, in its stored shape and type."""
        if name not in self._files:
            raise CheckpointError(f"{self.directory}: tensor {name} is missing")
        handle = self._open(self._files[name])
        try:
            return handle.get_tensor(name)
        except SafetensorError as error:
            path = self.directory / self._files[name]
            raise CheckpointError(f"{path}: tensor {name} cannot be read ({error})") from error


def read_config(path: str | Path) -> dict[str, Any]:
    """A JSON configuration file as a dictionary; faults name the file."""
    try:
        config = json.loads(Path(path).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: holds a {type(config).__name__}, not an object")
    return config


def load_module(
    module: nn.Module,
    checkpoint: Checkpoint,
    *,
    prefix: str = "",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    aliases: Callable[[str], Iterable[str]] | None = None,
    zero_if_missing: Callable[[str], bool] | None = None,
) -> None:
    """Fill every entry of `module.state_dict()` from `prefix` + its name, ready for inference.

    The module may live on the meta device: its tensors are replaced, cast to `dtype` (floating
    point ones) and put on `device`. `aliases(full name)` gives further names under which a
    checkpoint may hold the tensor; a tensor for which `zero_if_missing(full name)` holds may be
    left out and is zero then. Tensors that the module does not know are ignored.
    Raises `CheckpointError` that lists what is missing and which shapes differ.
    """
    state: dict[str, torch.Tensor] = {}
    faults: list[str] = []
    for name, wanted in module.state_dict().items():
        full = prefix + name
        stored = next((n for n in [full, *(aliases or _no_aliases)(full)] if n in checkpoint), None)
        if stored is None and zero_if_missing is not None and zero_if_missing(full):
            state[name] = torch.zeros(wanted.shape, device=device, dtype=dtype)
            continue
        if stored is None:
            faults.append(f"tensor {full} is missing, expected shape {list(wanted.shape)}")
            continue
        tensor = checkpoint.tensor(stored)
        if tensor.shape != wanted.shape:
            found, expected = list(tensor.shape), list(wanted.shape)
            faults.append(f"tensor {stored} has shape {found}, expected {expected}")
            continue
        cast = dtype if tensor.is_floating_point() else tensor.dtype
        state[name] = tensor.to(device=device, dtype=cast)
    if faults:
        raise CheckpointError(f"{checkpoint.directory}: {_summary(faults)}")
    module.load_state_dict(state, strict=True, assign=True)
    module.eval().requires_grad_(False)


def _no_aliases(_: str) -> Sequence[str]:
    return ()


def _summary(faults: list[str]) -> str:
    more = len(faults) - _SHOWN_FAULTS
    return "; ".join(faults[:_SHOWN_FAULTS]) + (f"; and {more} more" if more > 0 else "")
