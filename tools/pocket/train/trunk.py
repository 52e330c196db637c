"""Train the trunk on text and recall: ``python -m tools.pocket.train.trunk``.

Resumes from its state file. ``tools.pocket.train.joint`` goes on from there with pictures, clips
and sounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tools.pocket.spec import PocketSpec
from tools.pocket.train.batches import Batch, Mixer, collate, split
from tools.pocket.train.example import ChatEncoder, Example
from tools.pocket.train.objectives import PreviousHeads, Tally, answer_loss
from tools.pocket.train.parallel import Group, join
from tools.pocket.train.precision import autocast
from tools.pocket.train.run import arguments, optimizer, train, tune_process
from tools.pocket.train.text_mix import TEXT_SKILLS, TextMix
from tools.pocket.trunk.init import initialise
from tools.pocket.trunk.model import Trunk, TrunkOutput, compile_norms

CHECKPOINT = Path("models/pocket")  # tokenizer and template only
EARLY = 2  # the layer before which the token before must be known
BUDGET = 3072
SEED = 1
FAST_BALANCE, BALANCE = 0.02, 0.004
EVALUATE_CPU_SECONDS = 240.0
HELDOUT_SEED, HELDOUT_ITEMS = 7, 40
RECALL_LENGTHS = {512: 4, 1024: 4, 2048: 3, 4096: 2}


class TrunkTraining:
    """One trunk, its auxiliary heads, its data and its held-out examples."""

    previous_weight = 0.2
    fast_balance_steps = 200
    balance_step = BALANCE
    micro_batches = 2  # of an optimiser step, once lookup is learnt
    group = Group()

    def __init__(self, encoder: ChatEncoder, spec: PocketSpec, seed: int = SEED) -> None:
        text = spec.text
        self.trunk = Trunk(text)
        initialise(self.trunk, seed)
        self.trunk.mtp.requires_grad_(False)
        self.previous = PreviousHeads(text.hidden_size, text.vocab_size)
        ordinary = text.vocab_size - len(encoder.tokenizer.added_tokens_decoder)
        self.mix = TextMix(encoder, seed, ordinary)
        self.mixer = Mixer(self.mix.make, {}, seed, BUDGET, text.sliding_window)
        self.batches = self._batches()
        self._evaluated, self._heldout = -EVALUATE_CPU_SECONDS, dict[str, float]()
        self._examples: dict[str, list[Example]] = {}

    def _batches(self) -> Iterator[Batch]:
        self.mixer.weights = self.mix.weights()
        for batch in self.mixer.batches():
            yield batch
            self.mixer.weights = self.mix.weights()

    def share(self, group: Group) -> None:
        """Train with others: the same weights, data of its own."""
        self.group = group
        self.mixer.rank, self.mixer.ranks = group.rank, group.ranks
        self.batches = self._batches()

    def train(self, mode: bool) -> None:
        self.trunk.train(mode)

    def embed(self, batch: Batch) -> torch.Tensor:
        return self.trunk.embed(batch.ids)

    def losses(
        self, batch: Batch, output: TrunkOutput, generator: torch.Generator
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Losses, weighted, that are to be summed, and which tokens [B, T] were predicted."""
        answer, right = answer_loss(self.trunk, output.hidden, batch)
        previous = self.previous.loss(output.streams[EARLY], batch, generator)
        weight = 1.0 if self.mix.level.form == "pairs" else self.previous_weight
        return {"loss": answer, "previous": weight * previous}, right

    def forward(self, batch: Batch) -> TrunkOutput:
        return self.trunk(self.embed(batch), batch.valid)

    def step(self, number: int, optim: torch.optim.Optimizer) -> dict[str, float]:
        """One optimiser step; losses and ``items`` (tokens)."""
        self.train(True)
        seed = number * self.group.ranks + self.group.rank
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        micro = 1 if self.mix.learning_lookup else self.micro_batches
        totals: dict[str, float] = {"items": 0.0}
        for _ in range(micro):
            batch = next(self.batches)
            with autocast():
                losses, right = self.losses(batch, self.forward(batch), generator)
            (torch.stack(list(losses.values())).sum() / micro).backward()
            for name, value in losses.items():
                totals[name] = totals.get(name, 0.0) + value.item() / micro
            totals["items"] += batch.tokens
            tally = Tally()
            tally.add(batch, right)
            self.mix.learn(tally.accuracy(), batch.examples)
        parameters = [p for group in optim.param_groups for p in group["params"]]
        self.group.average(parameters)
        totals["norm"] = float(torch.nn.utils.clip_grad_norm_(parameters, 1.0))
        if math.isfinite(totals["norm"]):
            optim.step()
        else:
            print(f"step {number}: left out, its gradient is not finite", flush=True)
        optim.zero_grad()
        # The bias comes to rest with the learning rate.
        slow = self.balance_step * optim.param_groups[0]["lr"] / optim.defaults["lr"]
        fast = number < self.fast_balance_steps
        totals["busiest"] = self._balance(FAST_BALANCE if fast else slow)
        return totals

    def _balance(self, step: float) -> float:
        """Move the routers' biases; the busiest expert's load over the mean, worst layer."""
        worst = 0.0
        self.group.sum(experts.load for experts in self.trunk.experts)
        for experts in self.trunk.experts:
            load = experts.load.float()
            worst = max(worst, float(load.max() / load.mean()))
            experts.balance(step)
        return worst

    def heldout_examples(self) -> dict[str, list[Example]]:
        if not self._examples:
            mix = TextMix(self.mix.encoder, HELDOUT_SEED, self.mix.vocabulary)
            for skill in TEXT_SKILLS:
                made = [mix.make(skill, i, "heldout") for i in range(HELDOUT_ITEMS)]
                self._examples[skill] = made
            for length, count in RECALL_LENGTHS.items():
                made = [mix.recall(i, length, "heldout") for i in range(count)]
                self._examples[f"recall {length}"] = made
        return self._examples

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Share of held-out turns that greedy decoding would answer exactly, by skill.

        Costs processor time, so it is done again only after some of training.
        """
        if time.process_time() - self._evaluated < EVALUATE_CPU_SECONDS:
            return self._heldout
        self._heldout = self.measure(self.heldout_examples())
        self._evaluated = time.process_time()
        level, reach = self.mix.level, self.mix.reach
        print(f"  tokens: {level}  recall: {reach}", flush=True)
        return self._heldout

    @torch.no_grad()
    def measure(self, examples: Mapping[str, list[Example]]) -> dict[str, float]:
        """Share of whole turns, and under "NAME tokens" of tokens, predicted by name."""
        self.train(False)
        found: dict[str, float] = {}
        for name, rows in examples.items():
            tally = Tally()
            for group in split(rows, 2 * BUDGET, self.mixer.multiple):
                batch = collate(group, self.mixer.multiple)
                with autocast():
                    hidden = self.forward(batch).hidden
                    _, right = answer_loss(self.trunk, hidden, batch)
                tally.add(batch, right)
            (found[name],) = tally.accuracy().values()
            (found[f"{name} tokens"],) = tally.accuracy("tokens").values()
        return found

    def state(self) -> dict[str, Any]:
        return {
            "trunk": self.trunk.state_dict(),
            "previous": self.previous.state_dict(),
            "mix": self.mix.state(),
            "data": {"pool": self.mixer.pool, "place": self.mixer.place},
            "tokenizer": self.mix.encoder.fingerprint,
        }

    def restore(self, state: dict[str, Any]) -> None:
        if state["tokenizer"] != self.mix.encoder.fingerprint:
            raise ValueError("the state was trained with another tokenizer")
        self.trunk.load_state_dict(state["trunk"])
        self.previous.load_state_dict(state["previous"])
        self.mix.restore(state["mix"])
        # The rest of the pool was drawn with weights that are gone; the next pool is well defined.
        self.mixer.pool, self.mixer.place = state["data"]["pool"] + 1, 0
        self.batches = self._batches()


def main() -> None:
    tune_process()
    compile_norms()
    options = arguments("Train the pocket trunk on text and recall.", "trunk", 2e-3)
    training = TrunkTraining(ChatEncoder(CHECKPOINT), PocketSpec())
    group = join(options.workers)
    training.share(group)
    optim = optimizer([training.trunk, training.previous], options.rate)
    train(training, optim, options, group)


if __name__ == "__main__":
    main()
