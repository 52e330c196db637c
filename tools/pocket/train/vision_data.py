"""Batches of labelled pictures and frame pairs for the vision tower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from encoders.vision.packing import Grid
from encoders.vision.preprocess import to_patches
from tools.pocket.data import canvas, clips, printed, scenes
from tools.pocket.data.labels import IGNORE, SLOTS, Facts
from tools.pocket.data.sample import Split, Stream, stream

PATCH, TEMPORAL, MERGE = 16, 2, 2
SEED = 1
CELLS = 8  # rows or columns of merged patches that are told apart; the last stands for all after
DENSE = (1, 2, 3, 4, 5, 6, 7, 8)
_TIMES = np.arange(0.0, 8.0, 1.0)


@dataclass(frozen=True)
class Labels:
    """Classes of n patches in the tower's order, int64; -1 is no label.

    ``colour``, ``shape``, ``size`` are [n, 2]: first and second frame (of a still: the same).
    ``characters`` and ``numbers`` are [n, 4], ``slots`` [n, 4] the character there whose number
    is 1, 2, 3 or 4, or 4 more; ``thirds`` [n, 2] the third of the rows and of the
    columns, ``cell`` [n, 2] the row and column of the merged patch. ``within`` [n] says what
    happens there between the item's two frames, ``event`` what happens in the whole clip,
    ``second`` when, ``ordinal`` which of its events that is, from 0, ``noun`` [n, 3] what it
    happens to (``clip_labels``).
    """

    colour: torch.Tensor
    shape: torch.Tensor
    size: torch.Tensor
    characters: torch.Tensor
    numbers: torch.Tensor
    slots: torch.Tensor
    thirds: torch.Tensor
    cell: torch.Tensor
    within: torch.Tensor
    event: torch.Tensor
    second: torch.Tensor
    ordinal: torch.Tensor
    noun: torch.Tensor

    @staticmethod
    def concat(parts: Sequence[Labels]) -> Labels:
        names = [field.name for field in fields(Labels)]
        return Labels(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class Item:
    """A still picture or a pair of frames as the tower takes it, with its labels."""

    patches: torch.Tensor
    grid: Grid
    labels: Labels


def block_order(values: np.ndarray) -> np.ndarray:
    """[rows, columns, ...] to [rows * columns, ...] in the order of the tower's patches."""
    rows, columns = values.shape[:2]
    blocks = values.reshape(rows // MERGE, MERGE, columns // MERGE, MERGE, *values.shape[2:])
    return blocks.swapaxes(1, 2).reshape(rows * columns, *values.shape[2:])


def slots(characters: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Of the characters and numbers [..., COLUMNS] of patches the characters by number modulo
    SLOTS [..., SLOTS]; no label where two share a slot, or where one may be there."""
    unknown = (characters == IGNORE).any(axis=-1)
    found = np.zeros((*characters.shape[:-1], SLOTS), np.int64)
    for slot in range(SLOTS):
        here = (numbers > 0) & ((numbers - 1) % SLOTS == slot)
        held = np.where(here, characters, 0).max(axis=-1)
        other = (here & (characters != held[..., None])).any(axis=-1)
        found[..., slot] = np.where(other | (unknown & (held == 0)), IGNORE, held)
    return found


def item_of(frames: np.ndarray, facts: Sequence[Facts]) -> Item:
    """The item of uint8 frames [1 or 2, H, W, 3] and what each shows."""
    size = canvas.resized(*frames.shape[1:3])
    owned = torch.from_numpy(np.array(frames))
    patches, grid = to_patches(owned, size, patch=PATCH, temporal=TEMPORAL, merge=MERGE)
    _, rows, columns = grid
    shown = [fact.labels(rows, columns) for fact in facts]
    first, second = shown[0], shown[-1]
    at = np.moveaxis(np.indices((rows, columns)), 0, -1)
    printed_on = first.characters, first.numbers
    if len(facts) == 2:
        printed_on = (np.full_like(first.characters, IGNORE),) * 2
    arrays = (
        *(
            np.stack([getattr(first, name), getattr(second, name)], axis=-1)
            for name in ("colour", "shape", "size")
        ),
        *printed_on,
        slots(*printed_on),
        at * 3 // (rows, columns),
        np.minimum(at // MERGE, CELLS - 1),
        *(np.full((rows, columns), IGNORE),) * 4,
        np.full((rows, columns, 3), IGNORE),
    )
    return Item(patches, grid, Labels(*(torch.from_numpy(block_order(a)) for a in arrays)))


def scene(item: Stream) -> Item:
    """Up to eight things, so that many patches show one."""
    size = canvas.canvas_size(item, 64, 224)
    made = scenes.random_scene(item, size, DENSE)
    picture = scenes.picture(made, item)
    return item_of(picture.pixels[None], [picture.facts])


def page(item: Stream, names: tuple[str, ...] = ()) -> Item:
    picture = printed.page(item, names)
    return item_of(picture.pixels[None], [picture.facts])


def line(
    item: Stream,
    names: tuple[str, ...] = (),
    low: float = printed.LOW_SIZE,
    high: float = printed.HIGH_SIZE,
) -> Item:
    picture, _ = printed.one_line(item, printed.random_text(item), low, high, names)
    return item_of(picture.pixels[None], [picture.facts])


def pair(item: Stream) -> Item:
    """Two frames of a clip one second apart; in two of three something happens in between."""
    rng = item.rng
    script: clips.Script | clips.Colours
    if rng.random() < 0.15:
        script = clips.random_colours(item, _TIMES)
        moments = list(script.changes)
    else:
        script = clips.random_script(item, _TIMES)
        moments = [event.time for event in script.events]
    start = int(rng.choice(moments)) - 1 if rng.random() < 0.66 else rng.randrange(7)
    times = (float(max(start, 0)), float(max(start, 0) + 1))
    frames = [script.draw(time) for time in times]
    if rng.random() < 0.5:
        frames = canvas.jpeg_frames(item, frames)
    return item_of(np.stack(frames), [script.facts(time) for time in times])


KINDS: tuple[tuple[Callable[[Stream], Item], float], ...] = (
    *((scene, 0.34), (page, 0.36), (line, 0.08), (pair, 0.22)),
)


def batch(split: Split, number: int, patches: int) -> list[Item]:
    """Items of batch ``number`` with about ``patches`` patches in all, sorted by size."""
    choice = stream(split, "batch", SEED, number)
    makers, weights = zip(*KINDS, strict=True)
    items: list[Item] = []
    total = 0
    while total < patches:
        maker = choice.rng.choices(makers, weights)[0]
        item = maker(choice.fork(f"item{len(items)}"))
        items.append(item)
        total += item.patches.shape[0]
    # Neighbours of one size share an attention call; stills and pairs one product each.
    return sorted(items, key=lambda item: (item.patches.shape[1], item.grid))
