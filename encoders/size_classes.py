"""The order of waiting items: the device's work is shared evenly between size classes.

Start-time fair queuing (Goyal, Vin and Cheng, SIGCOMM 1996) with classes of equal weight: each
class has a tag, the work it was served; the waiting class with the lowest tag is next, and a class
that was empty starts at the tag of the last one served, so that idling earns no credit. Within a
class items go first come, first served; a pass never mixes classes.

So a class is delayed by the others as if each had the same share of the device. With C classes, P_k
the heaviest pass of class k and P the heaviest of all, the work of the passes that begin after an
item of class c arrived and before its own pass begins is at most

    C * ahead + (C - 1) * P_c + sum of P_k over the other classes k

where `ahead` is the work of its own class that waits before it; the pass that runs when it
arrives adds at most P. Proof: let v be the tag last served when the item arrives. No tag of a
waiting class is below v, and none above v + its own P_k. The item's class reaches the item at a tag
of at most v + P_c + ahead; until then another class k starts passes at tags from v to that value
only, hence of at most ahead + P_c + P_k work, and the item's class itself of at most `ahead`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

# Upper bounds of the classes but the last, as shares of the heaviest pass.
SHARES = (64, 16, 4)


def class_bounds(max_work: int) -> tuple[int, ...]:
    """Heaviest item of each class but the last: 1/64, 1/16 and 1/4 of `max_work`."""
    return tuple(sorted({max(max_work // share, 1) for share in SHARES}))


class SizeClasses(Generic[T]):
    """Waiting items with their work, in the order above. `bounds`: ascending, see `class_bounds`.

    Items are told apart as dictionary keys. Every operation costs O(classes + items taken).
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        if list(bounds) != sorted(set(bounds)):
            raise ValueError(f"class bounds must ascend, got {list(bounds)}")
        self.bounds = tuple(bounds)
        self._queues: list[dict[T, int]] = [{} for _ in range(len(bounds) + 1)]
        self._tags = [0] * len(self._queues)
        self._served = 0  # tag of the class served last
        self._work = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def __iter__(self) -> Iterator[T]:
        for queue in self._queues:
            yield from queue

    @property
    def work(self) -> int:
        """Work of all that waits."""
        return self._work

    def class_of(self, work: int) -> int:
        return bisect_left(self.bounds, work)

    def push(self, item: T, work: int) -> None:
        """Let `item` wait at the end of its class."""
        index = self.class_of(work)
        queue = self._queues[index]
        if item in queue:
            raise ValueError("the item waits already")
        if not queue:
            self._tags[index] = max(self._tags[index], self._served)
        queue[item] = work
        self._work += work

    def discard(self, item: T, work: int) -> bool:
        """Forget a waiting item of that work; False if it does not wait."""
        found = self._queues[self.class_of(work)].pop(item, None) is not None
        self._work -= work if found else 0
        return found

    def next_class(self) -> int | None:
        """The class whose turn it is, None if nothing waits. Of equal tags the lighter class."""
        waiting = [index for index, queue in enumerate(self._queues) if queue]
        return min(waiting, key=self._tags.__getitem__) if waiting else None

    def waiting(self, index: int) -> tuple[int, int]:
        """Number and work of the items of a class."""
        return len(self._queues[index]), sum(self._queues[index].values())

    def take(self, max_work: int, max_items: int) -> list[T]:
        """The next pass: as many items of the class whose turn it is as the limits allow.

        At least one if anything waits; an item above `max_work` goes alone.
        """
        index = self.next_class()
        if index is None:
            return []
        queue = self._queues[index]
        taken: list[T] = []
        total = 0
        for item, work in queue.items():
            if taken and (total + work > max_work or len(taken) >= max_items):
                break
            taken.append(item)
            total += work
        for item in taken:
            del queue[item]
        self._served = self._tags[index]
        self._tags[index] += total
        self._work -= total
        return taken

    def check(self) -> None:
        """Raises `AssertionError` when counts, classes and tags do not agree."""
        total = 0
        for index, queue in enumerate(self._queues):
            total += sum(queue.values())
            if any(self.class_of(work) != index for work in queue.values()):
                raise AssertionError(f"class {index} holds an item of another size")
            if queue and self._tags[index] < self._served:
                raise AssertionError(f"class {index} waits at a tag that is past")
        if total != self._work:
            raise AssertionError(f"{total} units of work wait, {self._work} are counted")
