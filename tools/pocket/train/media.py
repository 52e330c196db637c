"""Media of samples as the towers take them, and their embedding rows in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from encoders.audio.config import EncoderConfig
from encoders.audio.encoder import CodeEncoder, SpeechEmbeddings, group_codes
from encoders.audio.mel import MelFrontEnd
from encoders.audio.tokenizer import AudioTokenizer
from encoders.embedding import Segment, audio_layout, image_layout
from encoders.video_layout import plan_pairs, video_layout
from tools.pocket import configs
from tools.pocket.data.sample import Clip, Media, Picture, Sound
from tools.pocket.spec import PocketSpec
from tools.pocket.train.clip_labels import with_events
from tools.pocket.train.example import Example
from tools.pocket.train.vision_data import MERGE, Item, item_of

CODE_NOISE = 0.05  # share of codes replaced at random in training


@dataclass(frozen=True)
class Prepared:
    """One medium: items for the vision tower in row order, grouped codes [g, group, channels],
    and the layout that places the rows of both."""

    items: tuple[Item, ...]
    codes: torch.Tensor | None
    layout: tuple[Segment, ...]


class MediaReader:
    """Pixels to patches and samples to codes. The audio tokenizer is frozen."""

    def __init__(self, tokenizer: AudioTokenizer, group: int) -> None:
        self.tokenizer = tokenizer.eval().requires_grad_(False)
        self.group = group
        self.front_end = MelFrontEnd(tokenizer.config, torch.device("cpu"))

    def prepare(self, medium: Media) -> Prepared:
        if isinstance(medium, Picture):
            item = item_of(medium.pixels[None], [medium.facts])
            rows = item.patches.shape[0] // MERGE**2
            return Prepared((item,), None, image_layout(rows))
        if isinstance(medium, Sound):
            codes = self.codes(medium)
            return Prepared((), codes, audio_layout(codes.shape[0]))
        return self._clip(medium)

    def _clip(self, clip: Clip) -> Prepared:
        times = [float(t) for t in clip.times()]
        frames, facts = clip.frames(times), [clip.facts(t) for t in times]
        items = tuple(item_of(frames[i : i + 2], facts[i : i + 2]) for i in range(0, len(times), 2))
        items = with_events(items, times, clip.happenings)
        codes = self.codes(clip.sound) if clip.sound is not None else None
        count = 0 if codes is None else codes.shape[0]
        _, rows, columns = items[0].grid
        layout = video_layout(times, (len(items), rows, columns), count)
        if codes is not None:
            # Sound past the end of the picture is dropped, as the server does.
            pairs = plan_pairs(times, count)
            codes = codes[pairs[0].audio_start : pairs[-1].audio_stop]
        return Prepared(items, codes, layout)

    @torch.no_grad()
    def codes(self, sound: Sound) -> torch.Tensor:
        """Grouped codes int64 [g, group, channels] of a sound."""
        mel = self.front_end(sound.samples[None], sound.rate, self.tokenizer.lengths.min_samples)
        segments = mel.split(self.tokenizer.lengths.segment)
        found = [self.tokenizer(segment, [segment.shape[0]]) for segment in segments]
        return group_codes(torch.cat(found), self.group)


class AudioRows(nn.Module):
    """The checkpoint's speech embeddings and audio encoder, trainable."""

    def __init__(self, spec: PocketSpec) -> None:
        super().__init__()
        self.config = EncoderConfig.from_dict(configs.model_config(spec)["audio_config"])
        self.embeddings = SpeechEmbeddings(self.config)
        self.encoder = CodeEncoder(self.config)
        for table in self.embeddings:
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, std=self.config.channels**-0.5)
        self.embeddings.clear_zero_rows()

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Rows [g, hidden] of grouped codes [g, group, channels]."""
        if self.training:
            noise = torch.rand(codes.shape) < CODE_NOISE
            codes = torch.where(noise, torch.randint(0, int(codes.max()) + 1, codes.shape), codes)
        return self.encoder(self.embeddings(codes))


def run_tower(tower: nn.Module, items: Sequence[Item]) -> tuple[torch.Tensor, list[int]]:
    """Rows of all items, and the order in which the tower saw them.

    Items of one kind and size stand together, which saves attention calls. Rows come in that
    order too; ``in_order`` undoes it.
    """
    order = sorted(range(len(items)), key=lambda i: (items[i].patches.shape[1], items[i].grid))
    rows = tower([(items[i].patches, items[i].grid) for i in order])
    return torch.cat(rows), order


def in_order(rows: torch.Tensor, items: Sequence[Item], order: Sequence[int]) -> torch.Tensor:
    """Rows in the order of ``items``."""
    counts = [items[i].patches.shape[0] // MERGE**2 for i in order]
    parts = dict(zip(order, rows.split(counts), strict=True))
    return torch.cat([parts[i] for i in range(len(items))])


def media_items(examples: Sequence[Example]) -> list[Item]:
    return [item for e in examples for medium in e.media or () for item in medium.items]


def media_codes(examples: Sequence[Example]) -> list[torch.Tensor]:
    found = [medium.codes for e in examples for medium in e.media or ()]
    return [codes for codes in found if codes is not None]


def places(examples: Sequence[Example], kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Batch row and position of all embedding rows of one kind ("vision" or "audio")."""
    pairs = [(row, at) for row, e in enumerate(examples) for at in getattr(e, kind)]
    both = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    return both[:, 0], both[:, 1]
