"""The queue policy inside SGLang's scheduler, through hooks on its `SchedulePolicy`.

The engine is started with `schedule_policy` "compute-aware:{parameters as JSON}", which SGLang
then takes for `fcfs`: only the order of its waiting list is ours, admission and memory are not
touched. `Scheduler` counts prefill tokens and notes the count when a request joins (for its `hrrn`
policy); that is the policy's clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

from llm.queue.policy import Place, QueuePolicy

PREFIX = "compute-aware:"
_CLASS = "sglang.srt.managers.schedule_policy.SchedulePolicy"
# Requests looked up in the prefix tree in a pass: the first ones of the queue, whose turn it may
# be, and as many others in turns.
_MATCHED = 32


def schedule_policy(penalty: float, head_start: float, chunk_share: float) -> str:
    """The engine argument of that name."""
    parameters = {"penalty": penalty, "head_start": head_start, "chunk_share": chunk_share}
    return PREFIX + json.dumps(parameters)


def register(hooks: Any, kinds: Any) -> None:
    """Register the hooks (SGLang's HookRegistry and HookType)."""
    hooks.register(f"{_CLASS}._validate_and_adjust_policy", _adopt, kinds.AROUND)
    hooks.register(f"{_CLASS}.calc_priority", _order, kinds.AROUND)
    hooks.register(f"{_CLASS}.shortest_prefill_chunk_limit", _chunk_limit, kinds.AROUND)


class EngineQueue:
    """Orders SGLang's waiting list in place. `match(request)` refreshes
    `request.num_matched_prefix_tokens`; `chunk_share`: of a prefill pass, for requests that
    precede a long one in progress.
    """

    def __init__(
        self, policy: QueuePolicy, chunk_share: float, match: Callable[[Any], object]
    ) -> None:
        self.policy = policy
        self._share = chunk_share
        self._match = match
        self._orders = count()
        self._turn = 0

    def sort(self, waiting: list[Any], clock: int) -> None:
        """Sort `waiting` (SGLang's requests) by the policy; `clock`: prefill tokens so far."""
        fresh = [request for request in waiting if _place(request) is None]
        for request in fresh:
            self._match(request)
            request.compute_aware_place = Place(
                min(clock, request.arrival_processed_tokens),
                next(self._orders),
                uncached_of(request),
                request.priority or 0,
            )
        for request in waiting:
            place = request.compute_aware_place
            if place.placed is None and (request.is_retracted or request.output_ids):
                # It ran before: `place.uncached` still is the work it was chosen by.
                place.start(self.policy)
        waiting.sort(key=self._key)
        self._refresh(waiting, {id(request) for request in fresh})
        waiting.sort(key=self._key)

    def _refresh(self, waiting: list[Any], matched: set[int]) -> None:
        """What is cached changes while requests wait."""
        later = waiting[_MATCHED:]
        self._turn = self._turn + _MATCHED if self._turn + _MATCHED < len(later) else 0
        for request in (*waiting[:_MATCHED], *later[self._turn : self._turn + _MATCHED]):
            place = request.compute_aware_place
            if id(request) not in matched:
                self._match(request)
            if place.placed is None:
                place.uncached = uncached_of(request)

    def _key(self, request: Any) -> tuple[float, int]:
        key: tuple[float, int] = request.compute_aware_place.key(self.policy)
        return key

    def chunk_limit(
        self, chunked: Any, waiting: list[Any], budget: int, page_size: int
    ) -> int | None:
        """Tokens of this pass for a long prefill in progress; None = as many as fit.

        Requests that precede it in the queue's order join its pass, within the share.
        """
        place = _place(chunked)
        if place is None:
            return None
        place.start(self.policy)
        most = min(int(budget * self._share), budget - page_size)
        reserved = 0
        for request in waiting:
            other = _place(request)
            if other is None or other.key(self.policy) > place.key(self.policy):
                break
            work = -(-uncached_of(request) // page_size) * page_size
            if reserved + work > most:
                break
            reserved += work
        return (budget - reserved) // page_size * page_size if reserved else None


def uncached_of(request: Any) -> int:
    """Tokens that a prefill of the request computes now, at least 1."""
    tokens = len(request.origin_input_ids) + len(request.output_ids)
    return int(max(1, tokens - request.num_matched_prefix_tokens))


def _place(request: Any) -> Place | None:
    place: Place | None = getattr(request, "compute_aware_place", None)
    return place


def _adopt(original: Any, self: Any, policy: str, tree_cache: Any) -> Any:
    if not policy.startswith(PREFIX):
        return original(self, policy, tree_cache)
    from sglang.srt.managers.schedule_policy import match_kv_cache

    parameters = json.loads(policy.removeprefix(PREFIX))
    share = parameters.pop("chunk_share")

    def match(request: Any) -> None:
        if not getattr(tree_cache, "disable", True):
            match_kv_cache(request, tree_cache)

    self.compute_aware = EngineQueue(QueuePolicy(**parameters), share, match)
    return original(self, "fcfs", tree_cache)


def _order(
    original: Any,
    self: Any,
    waiting_queue: list[Any],
    running_batch: Any = None,
    processed_tokens: int | None = None,
) -> None:
    queue = getattr(self, "compute_aware", None)
    if queue is None or processed_tokens is None:
        # Another policy, or the decode side of a disaggregated pair, which prefills nothing.
        more = {} if processed_tokens is None else {"processed_tokens": processed_tokens}
        original(self, waiting_queue, running_batch, **more)
        return
    queue.sort(waiting_queue, processed_tokens)


def _chunk_limit(
    original: Any, self: Any, chunked_req: Any, waiting_queue: list[Any], budget: int, page: int
) -> int | None:
    queue = getattr(self, "compute_aware", None)
    if queue is None:
        limit: int | None = original(self, chunked_req, waiting_queue, budget, page)
        return limit
    limit = queue.chunk_limit(chunked_req, waiting_queue, budget, page)
    return limit
