"""When drafting pays: tokens per second with and without, from measured step times.

Verifying drafted rows costs little in a small batch and as much as further requests in a large
one, and drafts are right more or less often. Both are measured for each size of batch, and a few
trial steps now and then keep the figures of the way not taken fresh.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SMOOTHING = 0.1
# The other way must promise this much more, or the choice stays: measured times are noisy.
MARGIN = 1.1
# Steps of a trial; the first figure of a way comes from a trial, too.
TRIAL = 8
# Steps between two trials of the way not taken.
PAUSE = 256


@dataclass
class Way:
    """One way to take a step: its smoothed seconds, and tokens per request it yields."""

    seconds: float = 0.0
    tokens: float = 1.0
    steps: int = 0

    def observe(self, seconds: float, tokens: float) -> None:
        self.steps += 1
        # A plain mean at first, so that one slow step does not rule for long.
        weight = max(SMOOTHING, 1 / self.steps)
        if self.steps > TRIAL:
            # A step that waited for something else says nothing about the way.
            seconds = min(seconds, 4 * self.seconds)
        self.seconds += weight * (seconds - self.seconds)
        self.tokens += weight * (tokens - self.tokens)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass
class Choice:
    """The state of one batch size: which way is taken, and how long until the next trial."""

    drafting: bool = True
    ways: dict[bool, Way] = field(default_factory=lambda: {True: Way(), False: Way()})
    trial: int = 0
    wait: int = TRIAL
    switches: int = 0

    def next(self) -> bool:
        """Whether the coming step drafts."""
        if self.trial == 0 and self.wait == 0:
            self.trial = TRIAL
        return self.drafting != (self.trial > 0)

    def observe(self, drafted: bool, seconds: float, tokens: float) -> None:
        self.ways[drafted].observe(seconds, tokens)
        if drafted == self.drafting:
            self.wait = max(0, self.wait - 1)
            return
        self.trial = max(0, self.trial - 1)
        if self.trial:
            return
        self.wait = PAUSE
        if self.ways[drafted].rate > MARGIN * self.ways[not drafted].rate:
            self.drafting = drafted
            self.switches += 1


class MtpPolicy:
    """Decides step by step. Batches of similar size (same power of two) share a choice.

    A decision is followed by at most one ``observe`` of the step it led to; a step that cannot be
    measured is not observed, and its decision is taken again.
    """

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {}

    def decide(self, batch: int) -> bool:
        """Whether a decode step of ``batch`` requests drafts. Raises ValueError below 1."""
        return self._choice(batch).next()

    def observe(self, batch: int, drafted: bool, seconds: float, tokens: float) -> None:
        """A step of ``batch`` requests took ``seconds`` and gave ``tokens`` per request."""
        self._choice(batch).observe(drafted, seconds, tokens)

    def state(self) -> dict[str, Any]:
        """By the smallest batch of each size: the choice and the figures it rests on."""
        return {
            str(size): {
                "drafting": choice.drafting,
                "switches": choice.switches,
                "step_ms": {name: way.seconds * 1e3 for name, way in _named(choice)},
                "tokens_per_step": {name: way.tokens for name, way in _named(choice)},
                "steps": {name: way.steps for name, way in _named(choice)},
            }
            for size, choice in sorted(self._choices.items())
        }

    def check(self) -> None:
        """Raises RuntimeError when the state contradicts itself."""
        for size, choice in self._choices.items():
            if not (0 <= choice.trial <= TRIAL and 0 <= choice.wait <= PAUSE):
                raise RuntimeError(f"batch size {size}: trial {choice.trial}, wait {choice.wait}")
            if choice.trial and choice.wait:
                raise RuntimeError(f"batch size {size}: a trial runs before its time")

    def _choice(self, batch: int) -> Choice:
        if batch < 1:
            raise ValueError(f"a batch has at least one request, not {batch}")
        return self._choices.setdefault(1 << (batch.bit_length() - 1), Choice())


def _named(choice: Choice) -> list[tuple[str, Way]]:
    return [("drafted", choice.ways[True]), ("plain", choice.ways[False])]
