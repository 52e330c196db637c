"""Ranks in lock step: their passes begin and end together, and last as long as the slowest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tools.replay.cost import CostModel
from tools.replay.replica import Replica

IDLE, PREFILL, DECODE = 0, 1, 2


class Group:
    """The clock of one engine of one or more ranks. Prefill goes before decode.

    Runs of decode passes without an event in between are one step, computed in closed form.
    """

    __slots__ = (
        "_base_s",
        "_begin",
        "_growth_s",
        "_passes",
        "busy_s",
        "cost",
        "end",
        "mode",
        "neighbours",
        "prefill_s",
        "ranks",
        "version",
    )

    def __init__(self, ranks: Sequence[Replica], cost: CostModel) -> None:
        self.ranks = ranks
        self.cost = cost
        self.mode = IDLE
        # Other groups on the same host.
        self.neighbours: Sequence[Group] = ()
        self.end = 0.0
        self.version = 0
        self.busy_s = 0.0
        self.prefill_s = 0.0
        self._begin = 0.0
        self._passes = 0
        self._base_s = 0.0
        self._growth_s = 0.0

    def start(self, now: float) -> bool:
        """Begin the next pass or run of passes; False when there is nothing to do."""
        for rank in self.ranks:
            rank.form(now)
        self._begin = now
        self.version += 1
        if any(rank.batch for rank in self.ranks):
            self.mode = PREFILL
            self.end = now + self._prefill_duration() * self._crowding()
            return True
        if any(rank.decoding for rank in self.ranks):
            self.mode = DECODE
            self._passes = min(rank.passes_left() for rank in self.ranks if rank.decoding)
            crowding = self._crowding()
            self._base_s = self._decode_pass() * crowding
            widest = max(len(rank.decoding) for rank in self.ranks)
            cost = self.cost
            self._growth_s = cost.decode_context_s * cost.ranks * cost.accept * widest * crowding
            self.end = now + self._after(self._passes)
            return True
        self.mode = IDLE
        return False

    def finish(self, now: float) -> None:
        """The pass or run that ends now has its effects."""
        spent = now - self._begin
        self.busy_s += spent
        if self.mode == PREFILL:
            self.prefill_s += spent
            for rank in self.ranks:
                if rank.batch:
                    rank.commit(now)
                elif rank.decoding:
                    rank.advance(1, now)
        else:
            for rank in self.ranks:
                if rank.decoding:
                    rank.advance(self._passes, now)

    def interrupt(self, now: float) -> bool:
        """A request arrived: a run of decode passes ends with the one in progress.

        True when the end moved.
        """
        if self.mode != DECODE or self.end <= now:
            return False
        done = self._passes_until(now - self._begin)
        if done >= self._passes:
            return False
        self._passes = done
        # Not before the arrival, which rounding could make it.
        self.end = max(now, self._begin + self._after(done))
        self.version += 1
        return True

    def _prefill_duration(self) -> float:
        total = most = decoding = 0
        most_pairs = load = context = 0.0
        cost = self.cost
        for rank in self.ranks:
            if rank.batch:
                tokens, rank_pairs = rank.work()
                total += tokens
                most = max(most, tokens)
                most_pairs = max(most_pairs, rank_pairs)
                host, store = rank.load_bytes
                if host or store:
                    seconds = host / cost.host_bytes_s + store / cost.store_bytes_s
                    load = max(load, seconds + (cost.store_latency_s if store else 0.0))
            elif rank.decoding:
                decoding += len(rank.decoding)
                context = max(context, rank.context)
        seconds = cost.prefill_s(total, most, most_pairs)
        if decoding:
            seconds = max(seconds, cost.decode_s(decoding, context))
        return max(seconds, load) if cost.load_overlaps else seconds + load

    def _crowding(self) -> float:
        """How much longer a pass that begins now takes for what else runs on the host."""
        working = any(group.mode != IDLE for group in self.neighbours)
        return self.cost.crowding if working else 1.0

    def _decode_pass(self) -> float:
        requests = sum(len(rank.decoding) for rank in self.ranks)
        return self.cost.decode_s(requests, max(rank.context for rank in self.ranks))

    def _after(self, passes: int) -> float:
        """Seconds of so many decode passes; each is longer than the last by what it added."""
        return passes * self._base_s + self._growth_s * passes * (passes - 1) / 2

    def _passes_until(self, seconds: float) -> int:
        """Passes that have run, the one in progress included."""
        if self._growth_s <= 0:
            done = math.ceil(seconds / self._base_s)
        else:
            half = self._base_s - self._growth_s / 2
            done = math.ceil(
                (math.sqrt(half * half + 2 * self._growth_s * seconds) - half) / self._growth_s
            )
        return max(1, min(done, self._passes))
