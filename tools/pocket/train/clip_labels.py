"""What happens at each patch of a clip, when and to what: targets inside the trunk; training only.

Questions alone teach events slowly: an answer is a few tokens, and of the hundreds of rows that
it could depend on two or three matter. These labels say which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from tools.pocket.data.labels import EVENTS, IGNORE, Happening
from tools.pocket.data.sample import Clip
from tools.pocket.data.words import COLOURS, SHAPES
from tools.pocket.train.objectives import first_weighs, told_loss
from tools.pocket.train.vision_data import MERGE, Item, Labels

SECONDS = 32
ORDINALS = 5  # events that are told apart by their number; the last stands for all after
KINDS = len(EVENTS) + 1  # 0: nothing happens
NOUNS = (len(COLOURS) + 1, len(SHAPES) + 1, len(COLOURS) + 1)  # was, shape, becomes; 0: none
SIZES = (KINDS, SECONDS, *NOUNS, ORDINALS)
NOTHING = 0.15  # weight of that class
WHAT = 3.0  # weight of what happens: most patches say that nothing does
EVERYTHING = -1


def with_events(
    items: Sequence[Item], times: Sequence[float], happenings: Sequence[Happening]
) -> tuple[Item, ...]:
    """The items of a clip's frame pairs with their labels ``within``, ``event``, ``second``,
    ``ordinal`` and ``noun``.

    A happening is labelled in the pair whose frame is the first that shows it, at the patches
    where its thing is in that frame or was in the one before. A move only where it led: where it
    began it could as well be a disappearance, for the rows that follow are not seen there; so
    there is no label.
    """
    shapes = [item.labels.shape[:, frame] for item in items for frame in (0, 1)]
    events = [torch.zeros(len(item.labels.event), dtype=torch.int64) for item in items]
    within = [event.clone() for event in events]
    seconds, ordinals = ([torch.full_like(event, IGNORE) for event in events] for _ in range(2))
    nouns = [torch.full((len(event), len(NOUNS)), IGNORE) for event in events]
    for number, happening in enumerate(happenings):
        frame = int(np.searchsorted(np.asarray(times), happening.time))
        if not 0 < frame < len(times):
            continue
        shown = torch.zeros_like(events[frame // 2], dtype=torch.bool)
        for shape in shapes[frame - 1 : frame + 1]:
            shown |= (shape == happening.shape) | (happening.shape == EVERYTHING)
        if frame % 2:
            within[frame // 2][shown] = happening.kind
        if happening.moves:
            events[frame // 2][shown & (events[frame // 2] == 0)] = IGNORE
            shown = shapes[frame] == happening.shape
        events[frame // 2][shown] = happening.kind
        seconds[frame // 2][shown] = min(int(happening.time), SECONDS - 1)
        ordinals[frame // 2][shown] = min(number, ORDINALS - 1)
        nouns[frame // 2][shown] = torch.tensor(noun_of(happening))
    names = ("within", "event", "second", "ordinal", "noun")
    return tuple(
        replace(item, labels=replace(item.labels, **dict(zip(names, found, strict=True))))
        for item, *found in zip(items, within, events, seconds, ordinals, nouns, strict=True)
    )


def noun_of(happening: Happening) -> tuple[int, int, int]:
    return happening.was, max(happening.shape, 0), happening.becomes


@dataclass(frozen=True)
class Meanwhile:
    """What happens while a word is said, and whether only a ``later`` pair of frames shows it."""

    happening: Happening
    later: bool


def meanwhile(clip: Clip) -> list[Meanwhile | None]:
    """Of each word of a clip's sound: what happens in the pair of frames whose share of sound holds
    the word."""
    if clip.sound is None:
        return []
    times = clip.times()

    def pair(second: float) -> int:
        return int(np.searchsorted(times[::2], second, side="right")) - 1

    there: dict[int, Meanwhile] = {}
    for happening in clip.happenings:
        heard, seen = pair(happening.time), int(np.searchsorted(times, happening.time)) // 2
        there.setdefault(heard, Meanwhile(happening, later=seen > heard))
    return [there.get(pair((start + stop) / 2)) for start, stop, _ in clip.sound.words]


class EventHead(nn.Module):
    """Names event, second, noun and ordinal of each patch from the stream before the trunk's last
    layer, which is full attention: what is known there an answer can look up."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, MERGE**2 * sum(SIZES))

    def loss(self, rows: torch.Tensor, labels: Labels) -> torch.Tensor:
        """Weighted sum of the mean cross-entropies over the labelled patches of ``rows``
        [n / 4, hidden]; 0 where nothing is labelled."""
        predicted = self.head(self.norm(rows)).view(-1, sum(SIZES)).float()
        told = (labels.event, labels.second, *labels.noun.unbind(1), labels.ordinal)
        event, *others = zip(predicted.split(SIZES, 1), told, strict=True)
        total = WHAT * told_loss(*event, first_weighs(NOTHING, event[0]))
        for logits, wanted in others:
            total = total + told_loss(logits, wanted)
        return total
