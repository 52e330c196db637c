"""The media of an example with the positions of their rows; training only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tools.pocket.data.sample import Clip, Media, Picture, Sound
from tools.pocket.data.words import COLOURS, SHAPES
from tools.pocket.train.clip_labels import Meanwhile, meanwhile
from tools.pocket.train.example import Example
from tools.pocket.train.media import Prepared
from tools.pocket.train.vision_data import MERGE, Labels, block_order


@dataclass(frozen=True)
class Thing:
    """Colour and shape as words, and the positions of its rows."""

    colour: str
    shape: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Shown:
    """A medium of an example with the positions of its rows."""

    medium: Media
    prepared: Prepared
    vision: list[int]
    audio: list[int]

    @cached_property
    def labels(self) -> Labels:
        """Of all its patches, in the order of its rows."""
        return Labels.concat([item.labels for item in self.prepared.items])

    @property
    def rows_of_pair(self) -> int:
        """How many rows each pair of frames of a clip has."""
        return len(self.vision) // len(self.prepared.items)

    @cached_property
    def things(self) -> list[Thing]:
        """Of a picture, in the order in which they are complete: by their last rows."""
        assert isinstance(self.medium, Picture)
        _, rows, columns = self.prepared.items[0].grid
        facts = self.medium.facts
        owners = block_order(facts.owners(rows, columns)).reshape(-1, MERGE**2)
        found = []
        for number, (colour, shape, _) in enumerate(facts.attributes, start=1):
            held = (owners == number).any(axis=1).nonzero()[0]
            at = tuple(self.vision[row] for row in held)
            found.append(Thing(COLOURS[colour - 1], SHAPES[shape - 1], at))
        return sorted(found, key=lambda thing: max(thing.rows, default=-1))

    @cached_property
    def meanwhile(self) -> list[Meanwhile | None]:
        """Of each word of its sound."""
        if isinstance(self.medium, Clip):
            return meanwhile(self.medium)
        return [None] * len(self.medium.words) if isinstance(self.medium, Sound) else []

    @cached_property
    def by_second(self) -> dict[int, tuple[int, ...]]:
        """The rows of what happens in each second in which something does."""
        rows: dict[int, tuple[int, ...]] = {}
        of_row = self.labels.second.view(-1, MERGE**2).amax(dim=1).tolist()
        for position, second in zip(self.vision, of_row, strict=True):
            if second >= 0:
                rows[second] = (*rows.get(second, ()), position)
        return rows


def placed(example: Example, media: Sequence[Media], prepared: Sequence[Prepared]) -> list[Shown]:
    """The media of an example with the positions of their rows."""
    vision, audio = example.vision, example.audio
    found = []
    for medium, ready in zip(media, prepared, strict=True):
        seen = sum(item.patches.shape[0] for item in ready.items) // MERGE**2
        heard = 0 if ready.codes is None else ready.codes.shape[0]
        found.append(Shown(medium, ready, vision[:seen], audio[:heard]))
        vision, audio = vision[seen:], audio[heard:]
    return found
