"""Train the MTP layers: ``python -m tools.pocket.train.mtp [--joint]``.

First on a frozen model, then (``--joint``) together with it. Starts from the state of
``train.joint`` and writes one of the same form, so ``tools.pocket.export`` takes either.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from tools.pocket.data.voices import CACHE
from tools.pocket.spec import PocketSpec
from tools.pocket.train.audio_model import AudioTrainer
from tools.pocket.train.batches import Batch, collate, split
from tools.pocket.train.example import ChatEncoder, Example
from tools.pocket.train.joint import JointTraining
from tools.pocket.train.muon import MuonAdamW
from tools.pocket.train.objectives import answer_loss
from tools.pocket.train.parallel import join
from tools.pocket.train.precision import autocast
from tools.pocket.train.run import arguments, optimizer, train, tune_process
from tools.pocket.train.trunk import CHECKPOINT
from tools.pocket.train.vision_model import VisionTrainer
from tools.pocket.trunk.model import TrunkOutput, compile_norms

FROZEN_RATE, JOINT_RATE, JOINT_WEIGHT = 2e-3, 3e-4, 0.3
LONG_ANSWER = 20  # tokens; the end of a short answer caps what can be accepted


class MtpTraining(JointTraining):
    """Adds the loss of the three draft layers, in SGLang's token-shifted form."""

    def __init__(
        self,
        encoder: ChatEncoder,
        spec: PocketSpec,
        vision: VisionTrainer,
        audio: AudioTrainer,
        joint: bool = False,
    ) -> None:
        super().__init__(encoder, spec, vision, audio)
        self.joint = joint
        self.pads = torch.tensor(sorted(encoder.vocabulary.pads.values()))
        self.trunk.mtp.requires_grad_(True)
        if not joint:
            self.balance_step, self.pages = 0.0, 0
            heads = (self.previous, *self.heads.values())
            for module in (self.trunk, *heads, self.audio, self.vision):
                module.requires_grad_(False)
            self.trunk.mtp.requires_grad_(True)

    def optimizer(self, rate: float) -> MuonAdamW:
        return super().optimizer(rate) if self.joint else optimizer([self.trunk.mtp], rate)

    def draft_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids as the draft embeds them: the server's media sentinels clamp to the last id."""
        return ids.masked_fill(torch.isin(ids, self.pads), self.trunk.text.vocab_size - 1)

    def forward(self, batch: Batch) -> TrunkOutput:
        with torch.set_grad_enabled(self.joint and torch.is_grad_enabled()):
            return super().forward(batch)

    def losses(
        self, batch: Batch, output: TrunkOutput, generator: torch.Generator
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        if self.joint:
            losses, right = super().losses(batch, output, generator)
        else:
            losses, right = {}, answer_loss(self.trunk, output.hidden, batch)[1]
        weight = JOINT_WEIGHT if self.joint else 1.0
        for k in range(len(self.trunk.mtp)):
            loss = self.draft_loss(k, batch, output.hidden)
            losses[f"draft{k}"] = weight * loss / len(self.trunk.mtp)
        return losses, right

    def draft_loss(self, k: int, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of layer k at rows p where token p+1 was generated and p+2+k was too;
        0 for a batch of answers that are too short."""
        shift = 2 + k
        wanted = batch.supervised[:, shift:] & batch.supervised[:, 1 : 1 - shift]
        states = self.trunk.draft(k, self.draft_ids(batch.ids), hidden)
        logits = self.trunk.head(states[:, :-shift][wanted]).float()
        total = F.cross_entropy(logits, batch.ids[:, shift:][wanted], reduction="sum")
        return total / max(1, len(logits))

    @torch.no_grad()
    def measure(self, examples: Mapping[str, list[Example]]) -> dict[str, float]:
        """Adds "NAME accept": mean accept length of 4 on answers of 20 tokens and more that the
        trunk gives exactly, under greedy decoding, and "accept" over all of them."""
        found = super().measure(examples)
        everything: list[int] = []
        for name, rows in examples.items():
            lengths: list[int] = []
            for group in split(rows, 2 * self.mixer.budget, self.mixer.multiple):
                lengths += self.accepted(collate(group, self.mixer.multiple))
            if lengths:
                found[f"{name} accept"] = sum(lengths) / len(lengths)
            everything += lengths
        if everything:
            found["accept"] = sum(everything) / len(everything)
        return found

    @torch.no_grad()
    def accepted(self, batch: Batch) -> list[int]:
        """Accept length of every verify step in the batch's long answers."""
        with autocast():
            hidden = self.forward(batch).hidden
            _, right = answer_loss(self.trunk, hidden, batch)
            ids = self.draft_ids(batch.ids)
            drafts = [
                self.trunk.head(self.trunk.draft(k, ids, hidden)).argmax(-1)
                for k in range(len(self.trunk.mtp))
            ]
        lengths: list[int] = []
        for row, example in enumerate(batch.examples):
            rows = [draft[row].tolist() for draft in drafts]
            for first, stop in example.turns:
                if stop - first >= LONG_ANSWER and bool(right[row, first:stop].all()):
                    lengths += walk(example.ids, rows, first, stop)
        return lengths


def walk(ids: list[int], drafts: list[list[int]], first: int, stop: int) -> list[int]:
    """Accept lengths while ids[first:stop] is generated; ``drafts[k][p]`` is layer k at row p.

    The first token comes from the prefill. A step accepts drafts while each equals the true
    token, and one token of the target's own after them (mimo-v2.md section 3.3).
    """
    lengths, p = [], first - 1
    while p + 2 < stop:
        length = 1
        for k, draft in enumerate(drafts):
            if p + 2 + k >= stop or draft[p] != ids[p + 2 + k]:
                break
            length += 1
        length = min(length, stop - (p + 2))
        lengths.append(length)
        p += length
    return lengths


def main() -> None:
    tune_process()
    compile_norms()
    joint = "--joint" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--joint"]
    rate = JOINT_RATE if joint else FROZEN_RATE
    options = arguments("Train the MTP layers.", "mtp-joint" if joint else "mtp", rate)
    spec, encoder = PocketSpec(), ChatEncoder(CHECKPOINT)
    training = MtpTraining(encoder, spec, VisionTrainer(spec), AudioTrainer(spec), joint)
    if not options.state.is_file():
        names = ("mtp.pt",) if joint else ("joint-final.pt", "joint.pt")
        start = next(CACHE / name for name in names if (CACHE / name).is_file())
        training.restore(torch.load(start, map_location="cpu", weights_only=True))
        print(f"started from {start}", flush=True)
    group = join(options.workers)
    training.share(group)
    optim = training.optimizer(options.rate)
    train(training, optim, options, group)


if __name__ == "__main__":
    main()
