"""Uncached tokens queued and running on every replica, as one router knows them.

A replica reports its own load now and then; between reports a router adds what it sent itself and
takes off what it saw finished. So several routers over the same replicas agree with each report,
and one router alone is exact without any.

Beside the load it keeps how much work went to each replica lately, halved every `HALF_LIFE_S`: of
replicas with equal loads, the one with the least is next (`policy.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llm.router.slots import Slots

# Long against a prompt, so that it measures what went into a cache; short against a day, so that a
# replica that came later is not preferred for as long as the others have run.
HALF_LIFE_S = 600.0
_MOST_DOUBLINGS = 64.0


@dataclass(slots=True)
class _Replica:
    reported: float = 0.0
    reported_at: float = float("-inf")
    # Prefills that this router knows to be waiting or running: request -> (tokens, sent at).
    sent: dict[str, tuple[int, float]] = field(default_factory=dict)


class Loads:
    """Loads by replica; shares its slots with a `PrefixIndex`. Times are the caller's clock."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._replicas: dict[str, _Replica] = {}
        self._where: dict[str, str] = {}
        self._values = np.zeros(0, np.float64)
        # Grows with time instead of decaying: only the order counts.
        self._recent = np.zeros(0, np.float64)
        self._since: float | None = None

    def add_replica(self, replica: str) -> None:
        """A replica joins without load; one that is known stays as it is."""
        slot = self._slots.add(replica)
        if slot >= self._values.size:
            more = (0, max(8, self._values.size, slot + 1 - self._values.size))
            self._values, self._recent = (np.pad(a, more) for a in (self._values, self._recent))
        if replica not in self._replicas:
            self._replicas[replica] = _Replica()
            self._values[slot] = self._recent[slot] = 0.0

    def drop_replica(self, replica: str) -> None:
        """A replica is gone; call before its slot is given back. An unknown one is no error."""
        gone = self._replicas.pop(replica, None)
        if gone is not None:
            slot = self._slots[replica]
            self._values[slot] = self._recent[slot] = 0.0
            for request in gone.sent:
                self._where.pop(request, None)

    def sent(self, replica: str, request: str, tokens: int, now: float) -> None:
        """This router sent a request with `tokens` uncached; one that is known is moved."""
        self.prefilled(request)
        self._replicas[replica].sent[request] = (max(0, tokens), now)
        self._where[request] = replica
        # Before it is added to: this may bring all of them to another unit.
        growth = self._growth(now)
        slot = self._slots[replica]
        self._values[slot] += max(0, tokens)
        self._recent[slot] += max(0, tokens) * growth

    def _growth(self, now: float) -> float:
        """What a token sent now weighs in `recent`."""
        if self._since is None:
            self._since = now
        doublings = (now - self._since) / HALF_LIFE_S
        if doublings > _MOST_DOUBLINGS:
            self._recent *= 2.0**-doublings
            self._since, doublings = now, 0.0
        return float(2.0**doublings)

    def prefilled(self, request: str) -> None:
        """The request's first token came, or it failed; an unknown one is no error."""
        replica = self._where.pop(request, None)
        if replica is None:
            return
        state = self._replicas[replica]
        tokens, at = state.sent.pop(request)
        if at < state.reported_at:
            # The report counted it too.
            state.reported = max(0.0, state.reported - tokens)
        self._refresh(replica, state)

    def reported(self, replica: str, tokens: float, measured_at: float) -> None:
        """The replica's own count, everybody's requests included; older reports are ignored."""
        state = self._replicas.get(replica)
        if state is None or measured_at <= state.reported_at:
            return
        state.reported, state.reported_at = max(0.0, tokens), measured_at
        self._refresh(replica, state)

    def _refresh(self, replica: str, state: _Replica) -> None:
        own = sum(tokens for tokens, at in state.sent.values() if at >= state.reported_at)
        self._values[self._slots[replica]] = state.reported + own

    def load(self, replica: str) -> float:
        """Tokens queued and running on a replica, to this router's knowledge."""
        return float(self._values[self._slots[replica]])

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """Loads by slot, float64 [len(slots)]; 0 at free slots. Not to be written."""
        return self._values[: len(self._slots)]

    @property
    def recent(self) -> npt.NDArray[np.float64]:
        """Uncached tokens sent lately, in a common unit, by slot, float64 [len(slots)]; 0 at free
        slots. Not to be written.
        """
        return self._recent[: len(self._slots)]

    def check(self) -> None:
        """Raises AssertionError when sums and requests do not agree."""
        assert len(self._where) == sum(len(r.sent) for r in self._replicas.values())
        for request, replica in self._where.items():
            assert request in self._replicas[replica].sent, f"{request} is not on {replica}"
        for name, state in self._replicas.items():
            own = sum(tokens for tokens, at in state.sent.values() if at >= state.reported_at)
            assert abs(self.load(name) - state.reported - own) < 1e-6, f"load of {name} is off"
