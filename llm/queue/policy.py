"""Which waiting request is prefilled next: the least uncached work first, with a bounded wait.

Time is counted in prefill tokens that the engine has processed: `clock`. A request that joined at
clock s with u uncached tokens has the key

    s + u / penalty - tier * head_start

and the lowest key is served first. It is the queue "fewest uncached tokens first, minus
`penalty` tokens per token of waiting" written without the common term, so keys do not change while
requests wait. What follows from the formula:

- A younger request of the same tier overtakes only while it joined within (u - u') / penalty
  tokens of served work. A request therefore starts at the latest when the work that was there
  before it, and the smaller requests that joined within the next u / penalty tokens, are done.
- Equal work is first come, first served.
- A tier above overtakes within `head_start` further tokens: strict in practice, never for ever.
- A request waits for younger work at most 1 / penalty times as long as its own prefill takes while
  the engine just keeps up: twenty times with the default (docs/scheduling.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class QueuePolicy:
    """`penalty`: tokens of work that a token of waiting outweighs. `head_start`: tokens of served
    work by which a tier precedes the one below it.
    """

    penalty: float = 0.05
    head_start: float = 65_536.0

    def __post_init__(self) -> None:
        if self.penalty <= 0:
            raise ValueError(f"penalty must be above 0, got {self.penalty}")
        if self.head_start < 0:
            raise ValueError(f"head_start must be at least 0, got {self.head_start}")

    def key(self, uncached: int, joined: int, tier: int = 0) -> float:
        """The lower, the sooner. `joined`: the clock when it joined; `tier`: higher is better."""
        return joined + max(0, uncached) / self.penalty - tier * self.head_start

    def overtaking_window(self, uncached: int, smallest: int = 0, tiers_above: int = 0) -> float:
        """Tokens of served work after which no request that joins can overtake one of `uncached`
        tokens, when the smallest others have `smallest` and the best is `tiers_above` above it.
        """
        return max(0.0, (uncached - smallest) / self.penalty + tiers_above * self.head_start)

    def bound(
        self, uncached: int, backlog: int, rate: float, smallest: int = 0, tiers_above: int = 0
    ) -> float:
        """Tokens of work done before a request starts, at the most, on the served clock.

        `backlog`: uncached tokens that waited when it joined; `rate`: tokens that join per token
        served (the load, at 1 the engine just keeps up). Excludes the pass in progress.
        """
        return backlog + rate * self.overtaking_window(uncached, smallest, tiers_above)


@dataclass(slots=True)
class Place:
    """Where a request stands: the clock and its order when it joined, its work and tier, and its
    key since it started.
    """

    joined: int
    order: int
    uncached: int
    tier: int
    placed: float | None = None

    def key(self, policy: QueuePolicy) -> tuple[float, int]:
        """Sort key: the policy's, then first come, first served."""
        if self.placed is not None:
            return self.placed, self.order
        return policy.key(self.uncached, self.joined, self.tier), self.order

    def start(self, policy: QueuePolicy) -> None:
        """Its prefill begins: the key stays, whatever a preemption does to its work."""
        self.placed = self.key(policy)[0]


class WaitingQueue(Generic[Item]):
    """The state of the policy: when each request joined, and the place of those that started.

    Items are known by any hashable id. `clock` is advanced by the caller with the prefill tokens
    of each pass. A request that started keeps its key: preempted, it returns to its place however
    much of its KV was lost.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.clock = 0
        self._order = 0
        self._entries: dict[Item, Place] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: Item) -> bool:
        return item in self._entries

    def join(self, item: Item, uncached: int, tier: int = 0) -> None:
        """A request arrives; one that is known (it was preempted) keeps its place."""
        if item not in self._entries:
            self._entries[item] = Place(self.clock, self._order, uncached, tier)
            self._order += 1

    def update(self, item: Item, uncached: int) -> None:
        """What is cached of a waiting request changed."""
        self._entries[item].uncached = uncached

    def started(self, item: Item) -> None:
        """Its prefill begins."""
        self._entries[item].start(self.policy)

    def advance(self, tokens: int) -> None:
        """A prefill pass processed `tokens`."""
        self.clock += tokens

    def done(self, item: Item) -> None:
        """The request left the engine; an unknown one is no error."""
        self._entries.pop(item, None)

    def keep(self, items: Iterable[Item]) -> None:
        """Forget all but these."""
        kept = set(items)
        for item in [item for item in self._entries if item not in kept]:
            del self._entries[item]

    def key(self, item: Item) -> tuple[float, int]:
        """Sort key of a request, see `Place.key`."""
        return self._entries[item].key(self.policy)

    def sorted(self, items: Iterable[Item]) -> list[Item]:
        """Waiting requests in the order in which they are served."""
        return sorted(items, key=self.key)

    def check(self) -> None:
        """Raises AssertionError when the state is not consistent."""
        orders = [entry.order for entry in self._entries.values()]
        assert len(set(orders)) == len(orders), "two requests have one place in the order"
        for item, entry in self._entries.items():
            assert 0 <= entry.joined <= self.clock, f"{item!r} joined in the future"
            assert entry.order < self._order, f"{item!r} has an order not given yet"
