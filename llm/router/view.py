"""What one router knows, and how it decides: index, loads and policy behind one lock.

Used by the Serve router in each gateway process (and, with a virtual clock, by anything that
replays traffic). All times are the caller's, in seconds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from llm.buckets import BucketState
from llm.router.blocks import BYTES_PER_TOKEN
from llm.router.index import MAX_PAIRS, PrefixIndex
from llm.router.loads import Loads
from llm.router.policy import RoutingPolicy, lowest, rank, tie_numbers
from llm.router.prompt import Prompt
from llm.router.report import Report

# Reports that may have been measured before a prompt which has its first token was noted: one that
# was under way, and one while the replica still counted the tokens of its blocks.
_STALE_REPORTS = 2

_Slots = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A replica, and the tokens that the router expects to be usable there."""

    name: str
    matched: int


class RouterView:
    """Thread safe: Serve runs routers in a loop of their own."""

    def __init__(self, policy: RoutingPolicy | None = None, max_pairs: int = MAX_PAIRS) -> None:
        self._policy = policy if policy is not None else RoutingPolicy()
        self._index = PrefixIndex(max_pairs)
        self._loads = Loads(self._index.slots)
        self._reported: dict[str, float] = {}
        self._ratios: dict[str, float] = {}
        self._flying: dict[str, tuple[str, Prompt]] = {}
        # Prompts that came to a replica before its last reports, the latest first.
        self._landed: dict[str, deque[list[Prompt]]] = {}
        # Slots of all replicas (None: all that there are) and hashes by slot, until they change.
        self._all: _Slots | None = None
        self._hashes = np.zeros(0, np.uint64)
        self._lock = threading.RLock()

    def set_replicas(self, names: Iterable[str]) -> None:
        """The replicas that are alive; who left is forgotten, who came is empty."""
        with self._lock:
            now = dict.fromkeys(names)
            for gone in [name for name in self._index.replicas if name not in now]:
                self._loads.drop_replica(gone)
                self._index.drop_replica(gone)
                self._reported.pop(gone, None)
                self._ratios.pop(gone, None)
                self._landed.pop(gone, None)
                for request in [r for r, (where, _) in self._flying.items() if where == gone]:
                    del self._flying[request]
            for name in now:
                self._index.add_replica(name)
                self._loads.add_replica(name)
            slots = self._index.slots
            self._hashes = np.array(slots.hashes, np.uint64)
            self._all = None if len(now) == len(slots) else self._slots_of(now)

    def report(self, replica: str, report: Report) -> None:
        """A replica's report; one of an unknown replica or an older one is ignored."""
        with self._lock:
            if replica not in self._index.slots:
                return
            if report.at <= self._reported.get(replica, float("-inf")):
                return
            self._reported[replica] = report.at
            self._loads.reported(replica, report.load, report.at)
            usable = [block for block, stop in report.blocks.items() if stop]
            self._index.replace(replica, list(report.blocks), usable, report.slices, report.slice)
            if report.bytes_per_token:
                self._ratios[replica] = report.bytes_per_token
            flying = [prompt for where, prompt in self._flying.values() if where == replica]
            landed = self._landed.get(replica, ())
            for prompt in chain(flying, *landed):
                self._expect(replica, prompt)
            if landed:
                landed.appendleft([])

    def changed(
        self,
        replica: str,
        at: float,
        load: float,
        stored: Sequence[int],
        usable: Iterable[int],
        removed: Iterable[int],
    ) -> None:
        """The same as changes since the last time, from a feed that loses none.

        `stored`: blocks that are held now, parents first, of which a match may stop at `usable`;
        `removed`: blocks that are not held any more.
        """
        with self._lock:
            if replica not in self._index.slots:
                return
            self._loads.reported(replica, load, at)
            self._index.removed(replica, removed)
            self._index.stored(replica, stored, usable)

    def rank(self, prompt: Prompt, names: Set[str] | None = None, first: int = 1) -> list[Ranked]:
        """The best replicas for a prompt among `names` (None = all), best first."""
        with self._lock:
            everyone = names is None or names == self._index.names
            alive = self._all if everyone else self._slots_of(names or ())
            loads, recent = self._loads.values, self._loads.recent
            usable, held = self._index.reach(prompt)
            if alive is not None:
                loads, recent = loads[alive], recent[alive]
                usable, held = usable[alive], held[alive]
            if not loads.size:
                return []
            # Nobody else can be among the first: without a match only the load counts.
            few = lowest((loads, recent), first)
            if held.any():
                few = np.union1d(np.flatnonzero(held), few)
            where, usable = few if alive is None else alive[few], usable[few]
            order = [0]
            if few.size > 1:
                counted = usable + self._policy.held_weight * (held[few] - usable)
                ties = tie_numbers(self._hashes[where], prompt.blocks[-1] if prompt.blocks else 0)
                mean, loads, recent = float(loads.mean()), loads[few], recent[few]
                order = rank(self._policy, prompt.tokens, counted, loads, ties, first, recent, mean)
            return [Ranked(self._name(where[index]), int(usable[index])) for index in order]

    def _name(self, slot: np.intp) -> str:
        name = self._index.slots.names[slot]
        assert name is not None
        return name

    def _slots_of(self, names: Iterable[str]) -> _Slots:
        slots = self._index.slots
        return np.array([slots[name] for name in names if name in slots], np.intp)

    def sent(self, replica: str, request: str, prompt: Prompt, now: float) -> None:
        """A prompt goes to a replica: it will be held there, and its uncached work is load."""
        with self._lock:
            flying = self._flying.get(request)
            if replica not in self._index.slots or (flying is not None and flying[0] == replica):
                return
            matched = self._index.usable(prompt, replica)
            self._loads.sent(replica, request, prompt.tokens - matched, now)
            self._flying[request] = (replica, prompt)
            self._expect(replica, prompt)

    def prefilled(self, request: str, replica: str | None = None) -> None:
        """The first token of a request came, or it failed; an unknown one is no error.

        With `replica`: only if it was sent there last (it may have been retried elsewhere).
        """
        with self._lock:
            flying = self._flying.get(request)
            if flying is not None and replica in (None, flying[0]):
                del self._flying[request]
                self._loads.prefilled(request)
                self._land(*flying)

    def _land(self, replica: str, prompt: Prompt) -> None:
        if replica not in self._reported:  # it may never report
            return
        landed = self._landed.get(replica)
        if landed is None:
            landed = self._landed[replica] = deque([[]], maxlen=_STALE_REPORTS)
        landed[0].append(prompt)

    def _expect(self, replica: str, prompt: Prompt) -> None:
        """The blocks of a prompt on its way, as far as they are new; a match may stop at its end.

        Later reports correct what was expected wrongly.
        """
        held = self._index.held_by(replica)
        fresh = [block for block in prompt.blocks if block not in held]
        if fresh:
            self._index.stored(replica, fresh, fresh[-1:])

    def state(self, prompt: Prompt) -> tuple[int, BucketState]:
        """For length buckets: the prompt's uncached tokens here, and how loaded the replicas are.

        The replica that would get the prompt counts.
        """
        with self._lock:
            count = len(self._index.replicas)
            best = self.rank(prompt)
            matched = best[0].matched if best else 0
            return prompt.tokens - matched, BucketState(count, float(self._loads.values.sum()))

    @property
    def bytes_per_token(self) -> float:
        """What the replicas measured, or a usual value."""
        with self._lock:
            ratios = self._ratios.values()
            return sum(ratios) / len(ratios) if ratios else BYTES_PER_TOKEN

    def loads(self) -> dict[str, float]:
        """Tokens queued and running by replica."""
        with self._lock:
            return {name: self._loads.load(name) for name in self._index.replicas}

    def check(self) -> None:
        """Raises AssertionError when index, loads and requests do not agree."""
        with self._lock:
            self._index.check()
            self._loads.check()
            for request, (replica, _) in self._flying.items():
                assert replica in self._index.slots, f"{request} flies to a replica that is gone"
            assert self._landed.keys() <= self._reported.keys(), "prompts at a replica that is gone"
