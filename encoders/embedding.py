"""The type that carries encoded media through the house: rows, layout and digest.

Nothing here imports torch at module level: the gateway and the pipeline use these types too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Modality = Literal["image", "audio", "video"]


@dataclass(frozen=True)
class Special:
    """One special token, by its text, e.g. "<|vision_start|>"."""

    token: str


@dataclass(frozen=True)
class Text:
    """Plain text that is tokenised by itself, e.g. "00:02"."""

    text: str


@dataclass(frozen=True)
class Rows:
    """The next `count` embedding rows, at `count` pads of this modality."""

    modality: Modality
    count: int


Segment = Special | Text | Rows


@dataclass(frozen=True)
class RowsArray:
    """Embedding rows [n, hidden] as a numpy array, which Ray ships without a copy.

    numpy has no bfloat16: such rows are stored as their uint16 bit pattern. `dtype` is the torch
    name ("float32", "float16" or "bfloat16").
    """

    data: np.ndarray
    dtype: str

    def __post_init__(self) -> None:
        if self.data.ndim != 2:
            raise ValueError(f"embedding rows need two axes, got shape {self.data.shape}")

    def __len__(self) -> int:
        return int(self.data.shape[0])

    @classmethod
    def from_tensor(cls, rows: torch.Tensor) -> RowsArray:
        """Rows of a tensor [n, hidden] (float32, float16 or bfloat16, any device), copied: rows cut
        out of a batch must not keep the whole batch in memory.
        """
        import torch

        host = rows.detach().to("cpu", copy=True).contiguous()
        name = str(host.dtype).removeprefix("torch.")
        if host.dtype == torch.bfloat16:
            return cls(host.view(torch.uint16).numpy(), name)
        return cls(host.numpy(), name)

    def tensor(self) -> torch.Tensor:
        """The rows as a CPU tensor that shares this array's memory: do not write to it."""
        import torch

        from encoders.arrays import tensor_view

        host = tensor_view(self.data)
        return host.view(torch.bfloat16) if self.dtype == "bfloat16" else host

    def slice(self, start: int, stop: int) -> RowsArray:
        """Rows start..stop-1, without a copy."""
        return RowsArray(self.data[start:stop], self.dtype)

    @staticmethod
    def concat(parts: Sequence[RowsArray]) -> RowsArray:
        """One array of all parts' rows in order. Raises `ValueError` when the types differ."""
        names = {part.dtype for part in parts}
        if len(names) != 1:
            raise ValueError(f"cannot join embedding rows of types {sorted(names)}")
        return RowsArray(np.concatenate([part.data for part in parts]), names.pop())


def layout_rows(layout: Iterable[Segment]) -> int:
    """How many embedding rows a layout consumes."""
    return sum(segment.count for segment in layout if isinstance(segment, Rows))


def modality_rows(layout: Iterable[Segment]) -> dict[Modality, tuple[int, int]]:
    """Where each modality's rows lie in an embedding: the first one, and how many.

    The modalities follow each other as they first occur in the layout; so each one's rows are one
    piece of memory, however they are interleaved in the prompt.
    """
    counts: dict[Modality, int] = {}
    for segment in layout:
        if isinstance(segment, Rows) and segment.count:
            counts[segment.modality] = counts.get(segment.modality, 0) + segment.count
    found: dict[Modality, tuple[int, int]] = {}
    start = 0
    for modality, count in counts.items():
        found[modality] = start, count
        start += count
    return found


@dataclass(frozen=True)
class Embedding:
    """An encoded content part: its rows and the layout that places them.

    `modality` is the content part's own, `digest` its 64 hex characters (256 bit), `rows` a
    `RowsArray`, a `RowsRef` into a node's store (`encoders.store`) or a Ray object reference to an
    array. A video with sound has vision and audio rows in one array, each modality's in prompt
    order and without a gap: see `modality_rows`.
    """

    modality: Modality
    digest: str
    layout: tuple[Segment, ...]
    rows: Any

    def __post_init__(self) -> None:
        if isinstance(self.rows, RowsArray) and len(self.rows) != self.n_rows:
            raise ValueError(f"the layout needs {self.n_rows} rows, the array has {len(self.rows)}")

    @property
    def n_rows(self) -> int:
        return layout_rows(self.layout)


def image_layout(count: int) -> tuple[Segment, ...]:
    """Layout of an image part with `count` merged tokens."""
    return (Special("<|vision_start|>"), Rows("image", count), Special("<|vision_end|>"))


def audio_layout(count: int) -> tuple[Segment, ...]:
    """Layout of an audio part with `count` rows."""
    return (Special("<|mimo_audio_start|>"), Rows("audio", count), Special("<|mimo_audio_end|>"))
