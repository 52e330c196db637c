"""What every benchmark returns, and how it is printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """Repeated readings of one quantity, as median, smallest and largest."""

    median: float
    min: float
    max: float
    n: int

    @classmethod
    def of(cls, readings: Sequence[float]) -> Figure:
        """Raises ValueError without readings."""
        if not readings:
            raise ValueError("a figure needs at least one reading")
        return cls(
            round(statistics.median(readings), 6),
            round(min(readings), 6),
            round(max(readings), 6),
            len(readings),
        )


@dataclass(frozen=True)
class Bar:
    """A value and the bound it is held to: exactly one of ``at_least`` and ``at_most``."""

    value: float
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("a bar has either at_least or at_most")

    @property
    def met(self) -> bool:
        if self.at_least is not None:
            return self.value >= self.at_least
        assert self.at_most is not None
        return self.value <= self.at_most

    def document(self) -> dict[str, Any]:
        bound = {k: v for k, v in asdict(self).items() if v is not None and k != "value"}
        return {"value": round(self.value, 6), **bound, "met": self.met}


@dataclass
class Result:
    """Sizes of the run, its figures by name, and its bars by name."""

    sizes: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Figure | float] = field(default_factory=dict)
    bars: dict[str, Bar] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return all(bar.met for bar in self.bars.values())

    def document(self, bench: str, setup: dict[str, Any]) -> dict[str, Any]:
        """The JSON object of the contract in DESIGN.md."""
        return {
            "bench": bench,
            "setup": {**setup, "sizes": self.sizes},
            "figures": {
                name: asdict(f) if isinstance(f, Figure) else round(f, 6)
                for name, f in self.figures.items()
            },
            "bars": {name: bar.document() for name, bar in self.bars.items()},
        }
