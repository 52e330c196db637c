"""Train trunk, vision tower and audio encoder together: ``python -m tools.pocket.train.joint``.

Starts from the states of ``train.trunk``, ``train.vision`` and ``train.audio`` (their files in the
cache folder) and then lives in its own state file, which holds everything; the audio tokenizer in
it never changes again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.pocket.data.mixture import LONG, long_sample, sample
from tools.pocket.data.sample import Clip, Picture, Sample, Split, stream
from tools.pocket.data.voices import CACHE
from tools.pocket.spec import PocketSpec
from tools.pocket.train.audio_model import AudioTrainer
from tools.pocket.train.batches import Batch
from tools.pocket.train.clip_labels import EventHead
from tools.pocket.train.example import ChatEncoder, Example
from tools.pocket.train.media import (
    AudioRows,
    MediaReader,
    in_order,
    media_codes,
    media_items,
    places,
    run_tower,
)
from tools.pocket.train.muon import MuonAdamW
from tools.pocket.train.pair_before import pointers_before
from tools.pocket.train.parallel import join
from tools.pocket.train.pointer_targets import pointers
from tools.pocket.train.pointers import Pointer, pointer_loss
from tools.pocket.train.row_labels import EARLY, RowHead, row_labels, told_labels
from tools.pocket.train.run import arguments, parameter_groups, train, tune_process
from tools.pocket.train.shipped import fill_from
from tools.pocket.train.shown import placed
from tools.pocket.train.text_mix import Reach, TextMix, varied
from tools.pocket.train.text_targets import copied, occurrences
from tools.pocket.train.thing_counts import pointers_to_same
from tools.pocket.train.tokens_recall import Level
from tools.pocket.train.towers import load_audio_trainer, load_vision_trainer
from tools.pocket.train.trunk import CHECKPOINT, HELDOUT_SEED, TrunkTraining
from tools.pocket.train.turns import telling_last
from tools.pocket.train.vision_data import MERGE, SEED, Item, Labels, page
from tools.pocket.train.vision_model import (
    STAGES,
    WIDTH,
    Logits,
    VisionTrainer,
    split,
    target_loss,
)
from tools.pocket.trunk.model import Layer, TrunkOutput, compile_norms

MEDIA_SHARES = {
    "look": 20.0,
    "read": 28.0,
    "compare": 18.0,
    "watch": 45.0,
    "hear_words": 18.0,
    "hear_tones": 3.0,
}
TURNS = 6  # questions about the same media
HELDOUT_MEDIA = 32
LABELS = 0.3  # weight of patch and row labels
EVENTS = 0.3  # weight of what happens in clips
ROWS = 0.3  # weight of the characters and words that rows hold
POINTERS = 1.0  # weight of where answers look
BEFORE = 0.5  # weight of where rows of media look
COPIED = ("copy", "long", "rearrange")  # skills whose answers repeat a part of the prompt
COUNTED = ("count", "occur")  # skills in which words may be counted
TOWER_RATE = 0.7  # of the trunk's learning rate
# Where a trained checkpoint begins again; it passes the curricula's first levels at once.
LEVEL, REACH = Level("separated", 512), Reach(1024)
POOLS = 1 << 16  # more pools than any run takes
HEADS_FIRST = 150  # steps in which fresh heads learn what the model says without changing it


class JointMix(TextMix):
    """Text skills and media skills. ``reader`` must be set before media are made."""

    reader: MediaReader

    def make(self, skill: str, index: int, split: Split = "train") -> Example:
        if skill not in MEDIA_SHARES:
            return self._text(skill, index, split)
        made = varied(self._sample(skill, index, split), index)
        media = [self.reader.prepare(medium) for medium in made.media]
        example = self.encoder.example(made, [medium.layout for medium in media])
        example.media = media
        shown = placed(example, made.media, media)
        example.pointers, numbers = pointers(example, made, shown, self.encoder.tokenizer.decode)
        for about in shown:
            if isinstance(about.medium, Clip):
                example.before += pointers_before(about)
            elif isinstance(about.medium, Picture):
                example.before += pointers_to_same(about)
        example.row_labels = row_labels(shown) | {"told": told_labels(numbers)}
        return example

    def _text(self, skill: str, index: int, split: Split) -> Example:
        if skill not in (*COPIED, *COUNTED):
            return super().make(skill, index, split)
        made = varied(sample(skill, split, self.seed, index), index)
        example, decode = self.encoder.example(made), self.encoder.tokenizer.decode
        if skill in COUNTED:
            example.pointers, example.row_labels["counted"] = occurrences(example, decode)
        elif "order" in made.detail:
            found = copied(example, made.detail["order"], decode)
            example.pointers, example.row_labels["copied"] = found
        return example

    def _sample(self, skill: str, index: int, split: Split) -> Sample:
        if split != "train" or skill not in LONG or index % 4 == 0:
            return sample(skill, split, self.seed, index)
        return telling_last(long_sample(skill, self.seed, index, TURNS))

    def shares(self) -> dict[str, float]:
        media = {skill: share * self._need(skill) for skill, share in MEDIA_SHARES.items()}
        return super().shares() | media


class JointTraining(TrunkTraining):
    """A ``TrunkTraining`` whose embeddings include the rows of pictures, clips and sounds."""

    previous_weight = 0.1
    fast_balance_steps = 0
    micro_batches = 1
    pages = 6  # of print, in each batch with pictures
    heads_first = 0
    mix: JointMix

    def __init__(
        self, encoder: ChatEncoder, spec: PocketSpec, vision: VisionTrainer, audio: AudioTrainer
    ) -> None:
        super().__init__(encoder, spec)
        self.vision, self.audio_trainer, self.audio = vision, audio, AudioRows(spec)
        self.row_head = nn.Linear(spec.text.hidden_size, WIDTH * MERGE**2)
        self.event_head = EventHead(spec.text.hidden_size)
        self.order_head = RowHead(spec.text.hidden_size)
        self.early_head = RowHead(spec.text.hidden_size, EARLY)
        self.heads: dict[str, nn.Module] = {  # of labels, by their names in the state
            "row_head": self.row_head,
            "event_head": self.event_head,
            "order_head": self.order_head,
            "early_head": self.early_head,
        }
        self._alone = False
        # The layer in the middle of those that see everything: some are left to say what happened.
        full = [i for i, sliding in enumerate(spec.text.hybrid_layer_pattern) if not sliding]
        self._middle = full[(len(full) - 1) // 2]
        self.reader = MediaReader(audio.tokenizer, self.audio.config.group)
        self.mix = self._mix(self.mix.seed)
        self.mixer.make = self.mix.make
        self.batches = self._batches()

    def _mix(self, seed: int) -> JointMix:
        mix = JointMix(self.mix.encoder, seed, self.mix.vocabulary)
        mix.reader = self.reader
        return mix

    def begin_at(self, checkpoint: Path) -> None:
        """Go on from a checkpoint's weights, on data that follow from them. See ``shipped``."""
        fill_from(checkpoint, self.trunk, self.vision.tower, self.audio, self.audio_trainer)
        self.mix.level, self.mix.reach, self.heads_first = LEVEL, REACH, HEADS_FIRST
        digest = hashlib.blake2b((checkpoint / "model.safetensors").read_bytes(), digest_size=2)
        self.mixer.pool = POOLS * (1 + int.from_bytes(digest.digest(), "little"))
        self.batches = self._batches()

    def train(self, mode: bool) -> None:
        for module in (self.trunk, self.vision, self.audio):
            module.train(mode)

    def step(self, number: int, optim: torch.optim.Optimizer) -> dict[str, float]:
        self._alone = number < self.heads_first
        return super().step(number, optim)

    def _apart(self, features: torch.Tensor) -> torch.Tensor:
        """What a head of labels reads: it must not pull at the model before it has learnt."""
        return features.detach() if self._alone else features

    def embed(self, batch: Batch) -> torch.Tensor:
        """Token embeddings with media rows in place; in training also keeps ``tower_labels``."""
        x = super().embed(batch)
        self.tower_labels = x.new_zeros(())
        codes = media_codes(batch.examples)
        if codes:
            rows = self.audio(torch.cat(codes))
            x = x.index_put(places(batch.examples, "audio"), rows.to(x.dtype))
        items = media_items(batch.examples)
        if not items:
            return x
        shown = places(batch.examples, "vision")
        if self.trunk.training:
            items += print_pages(self.pages)
        with sdpa_kernel(SDPBackend.MATH):
            seen, order = run_tower(self.vision.tower, items)
        rows = in_order(seen, items, order)[: shown[0].numel()]
        x = x.index_put(shown, rows.to(x.dtype))
        if self.trunk.training:
            labels = Labels.concat([items[i].labels for i in order])
            said = self.vision.predictions(seen, self._apart)
            for weight, predicted in zip(STAGES, said, strict=True):
                self.tower_labels = self.tower_labels + weight * labelled(predicted, labels)
        return x

    def losses(
        self, batch: Batch, output: TrunkOutput, generator: torch.Generator
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Adds the labels: of patches and rows in the tower, of image rows in the trunk."""
        losses, right = super().losses(batch, output, generator)
        items = media_items(batch.examples)
        if items:
            shown = places(batch.examples, "vision")
            rows = output.hidden[shown]
            labels = Labels.concat([item.labels for item in items])
            own = labelled(split(self.row_head(self._apart(rows)).view(-1, WIDTH)), labels)
            losses["labels"] = LABELS * (own + self.tower_labels)
            late = self._apart(output.late[shown])
            losses["events"] = EVENTS * self.event_head.loss(late, labels)
        losses["rows"] = ROWS * self.order_head.loss(self._apart(output.late), batch.examples)
        early = self._apart(output.streams[self._middle + 1])
        losses["early"] = ROWS * self.early_head.loss(early, batch.examples)
        pointers = [example.pointers for example in batch.examples]
        before = [example.before for example in batch.examples]
        losses["pointers"] = POINTERS * self.pointer_loss(-1, output, pointers)
        losses["before"] = BEFORE * self.pointer_loss(self._middle, output, before)
        return losses, right

    def pointer_loss(
        self, number: int, output: TrunkOutput, pointers: list[list[Pointer]]
    ) -> torch.Tensor:
        layer, stream = self.trunk.layers[number], output.streams[number]
        assert isinstance(layer, Layer)
        return pointer_loss(layer, stream, self.trunk.angles(stream.shape[1], False), pointers)

    def heldout_examples(self) -> dict[str, list[Example]]:
        if not self._examples:
            mix = self._mix(HELDOUT_SEED)
            media = {
                skill: [mix.make(skill, i, "heldout") for i in range(HELDOUT_MEDIA)]
                for skill in MEDIA_SHARES
            }
            self._examples = media | super().heldout_examples()
        return self._examples

    def optimizer(self, rate: float) -> MuonAdamW:
        """Over everything but the audio tokenizer; the tower at a lower rate."""
        own = (self.trunk, self.previous, self.audio, *self.heads.values())
        groups = [
            {**group, "scale": scale * group["scale"]}
            for modules, scale in ((own, 1.0), ([self.vision], TOWER_RATE))
            for group in parameter_groups(modules)
        ]
        return MuonAdamW([group for group in groups if group["params"]], rate, self.group)

    def state(self) -> dict[str, Any]:
        return (
            super().state()
            | {
                "vision": self.vision.state_dict(),
                "audio_tokenizer": self.audio_trainer.state_dict(),
                "audio": self.audio.state_dict(),
            }
            | {name: head.state_dict() for name, head in self.heads.items()}
        )

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        if "vision" in state:
            self.vision.load_state_dict(state["vision"])
            self.audio_trainer.load_state_dict(state["audio_tokenizer"])
            self.audio.load_state_dict(state["audio"])
            for name, head in self.heads.items():
                head.load_state_dict(state[name])


def print_pages(count: int) -> list[Item]:
    """Pictures full of print for the tower's labels alone: a single line teaches it few letters.
    torch's random state chooses them."""
    numbers = torch.randint(1 << 40, (count,)).tolist()
    return [page(stream("train", "joint-page", SEED, number)) for number in numbers]


def labelled(predicted: Logits, labels: Labels) -> torch.Tensor:
    """Weighted sum of the label losses of predictions."""
    losses = [target_loss(name, logits, labels) for name, logits in predicted.items()]
    return torch.stack(losses).sum()


def start_states(folder: Path) -> tuple[VisionTrainer, AudioTrainer, dict[str, Any]]:
    """The towers and the trunk's state as the single programs left them."""
    trunk = torch.load(folder / "trunk.pt", map_location="cpu", weights_only=True)
    audio = load_audio_trainer(folder / "audio.pt")
    round_tokenizer(audio)
    return load_vision_trainer(folder / "vision.pt"), audio, trunk


@torch.no_grad()
def round_tokenizer(audio: AudioTrainer) -> None:
    """Round the tokenizer to bfloat16, as a checkpoint holds it and a server may load it, so that
    training sees the codes that serving will."""
    for tensor in (*audio.tokenizer.parameters(), *audio.tokenizer.buffers()):
        tensor.copy_(tensor.to(torch.bfloat16).float())


def main() -> None:
    tune_process()
    compile_norms()
    about = "Train trunk, vision tower and audio encoder together."
    options = arguments(about, "joint", 1e-3, start=True)
    spec, encoder = PocketSpec(), ChatEncoder(CHECKPOINT)
    if options.state.is_file() or options.start:
        training = JointTraining(encoder, spec, VisionTrainer(spec), AudioTrainer(spec))
        if not options.state.is_file():
            training.begin_at(options.start)
    else:
        vision, audio, trunk = start_states(CACHE)
        training = JointTraining(encoder, spec, vision, audio)
        training.restore(trunk)
    group = join(options.workers)
    training.share(group)
    optim = training.optimizer(options.rate)
    train(training, optim, options, group)


if __name__ == "__main__":
    main()
