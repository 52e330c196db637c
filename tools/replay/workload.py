"""Requests as arrays: when they arrive, how long they are, and which prefix blocks they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """``n`` requests in order of ``ready``.

    ``arrival``: seconds, float64 ``[n]``; TTFT counts from here. ``ready``: when the language
    model may have it (after its media are encoded), float64 ``[n]``. ``input_tokens`` and
    ``output_tokens``: int64 ``[n]``, at least 1. ``offsets``: int64 ``[n + 1]`` into ``blocks``,
    whose ids name a block of ``block_tokens`` tokens together with everything before it; the last
    block of a request may be partly filled. ``session``: int64 ``[n]``.
    """

    name: str
    block_tokens: int
    arrival: Floats
    ready: Floats
    input_tokens: Ints
    output_tokens: Ints
    offsets: Ints
    blocks: Ints
    session: Ints
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival[-1] - self.arrival[0]) if len(self) else 0.0

    def path(self, index: int) -> list[int]:
        """The block ids of one request, first block first."""
        return self.blocks[self.offsets[index] : self.offsets[index + 1]].tolist()

    def check(self) -> None:
        """Raises ValueError naming what is not as the class says."""
        n = len(self)
        lengths = np.diff(self.offsets)
        wrong = [
            name
            for name, bad in {
                "no requests": n == 0,
                "arrays of different lengths": not (
                    len(self.ready) == len(self.input_tokens) == len(self.output_tokens) == n
                    and len(self.session) == n
                    and len(self.offsets) == n + 1
                ),
                "ready not sorted": bool(np.any(np.diff(self.ready) < 0)),
                "ready before arrival": bool(np.any(self.ready < self.arrival)),
                "a request without input": bool(np.any(self.input_tokens < 1)),
                "a request without output": bool(np.any(self.output_tokens < 1)),
                "blocks do not cover the input": bool(
                    np.any(lengths != -(-self.input_tokens // self.block_tokens))
                ),
            }.items()
            if bad
        ]
        if wrong:
            raise ValueError(f"workload {self.name!r}: {', '.join(wrong)}")

    def at_rate(self, factor: float) -> Workload:
        """The same requests arriving ``factor`` times as fast; encoding takes as long as before."""
        if not factor > 0:
            raise ValueError(f"a rate factor must be positive, not {factor}")
        arrival = self.arrival / factor
        encoding = self.ready - self.arrival
        return _by_ready(replace(self, arrival=arrival, ready=arrival + encoding))

    def at_once(self) -> Workload:
        """All requests there at time 0, in their order: what saturates a fleet."""
        zero = np.zeros(len(self))
        return replace(self, arrival=zero, ready=zero)

    def first(self, count: int) -> Workload:
        """The first ``count`` requests."""
        return self.take(np.arange(min(count, len(self))))

    def take(self, indices: Ints) -> Workload:
        """The requests at ``indices``, in that order (which must keep ``ready`` sorted)."""
        parts = [self.blocks[self.offsets[i] : self.offsets[i + 1]] for i in indices]
        return replace(
            self,
            arrival=self.arrival[indices],
            ready=self.ready[indices],
            input_tokens=self.input_tokens[indices],
            output_tokens=self.output_tokens[indices],
            offsets=offsets_of([len(p) for p in parts]),
            blocks=np.concatenate(parts) if parts else np.zeros(0, np.int64),
            session=self.session[indices],
        )

    def copies(self, count: int, seed: int, jitter_s: float = 60.0) -> Workload:
        """``count`` populations with the same habits at once, each with prefixes of its own.

        Copies start up to ``jitter_s`` seconds apart; nothing is shared between them.
        """
        shifts = np.random.default_rng(seed).uniform(0, jitter_s, count)
        shifts[0] = 0.0
        span = int(self.blocks.max()) + 1 if len(self.blocks) else 1
        sessions = int(self.session.max()) + 1
        parts = [
            replace(
                self,
                arrival=self.arrival + shift,
                ready=self.ready + shift,
                blocks=self.blocks + i * span,
                session=self.session + i * sessions,
            )
            for i, shift in enumerate(shifts)
        ]
        return merged(f"{self.name} x{count}", parts)

    def coarser(self, factor: int) -> Workload:
        """Blocks ``factor`` times as long; the id of the last one covered names the whole."""
        size = self.block_tokens * factor
        counts = -(-self.input_tokens // size)
        picks = [
            np.minimum(np.arange(1, c + 1) * factor, end - start) - 1 + start
            for c, start, end in zip(counts, self.offsets[:-1], self.offsets[1:], strict=True)
        ]
        return replace(
            self,
            block_tokens=size,
            offsets=offsets_of(counts.tolist()),
            blocks=self.blocks[np.concatenate(picks)],
        )

    def infinite_hits(self) -> float:
        """Share of input tokens that one cache without end would hold when they are asked for."""
        seen: set[int] = set()
        hit = 0
        for i, tokens in enumerate(self.input_tokens.tolist()):
            path = self.path(i)
            depth = 0
            for block in path:
                if block not in seen:
                    break
                depth += 1
            seen.update(path)
            hit += min(depth * self.block_tokens, tokens - 1)
        return hit / int(self.input_tokens.sum())

    def windowed_hits(self, chunk: int, tails: Sequence[int] = ()) -> float:
        """The same where a hit may only stop at a kept window: at the end of an earlier prompt, of
        a chunk of its prefill, or where an earlier prompt branched off, and at every of ``tails``
        (positions). One at a time, in order.
        """
        size = self.block_tokens
        seen: set[int] = set()
        stops: set[int] = set()
        total = 0
        for i, tokens in enumerate(self.input_tokens.tolist()):
            path = self.path(i)
            depth = next((k for k, block in enumerate(path) if block not in seen), len(path))
            usable = next((k for k in range(depth, 0, -1) if path[k - 1] in stops), 0)
            hit = min(usable * size, tokens - 1)
            total += hit
            ends = [depth, *(end // size for end in range(hit + chunk, tokens, chunk))]
            ends += [tail // size for tail in tails if tail <= tokens]
            stops.update(path[end - 1] for end in (*ends, tokens // size) if end)
            seen.update(path)
        return total / int(self.input_tokens.sum())


def offsets_of(lengths: list[int]) -> Ints:
    """Where each of several runs starts, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64)


def merged(name: str, parts: list[Workload]) -> Workload:
    """Several workloads at once, ordered by time. Their block and session ids are taken as is."""
    if len({p.block_tokens for p in parts}) != 1:
        raise ValueError("workloads with different block sizes cannot be merged")
    whole = Workload(
        name,
        parts[0].block_tokens,
        np.concatenate([p.arrival for p in parts]),
        np.concatenate([p.ready for p in parts]),
        np.concatenate([p.input_tokens for p in parts]),
        np.concatenate([p.output_tokens for p in parts]),
        offsets_of(np.concatenate([np.diff(p.offsets) for p in parts]).tolist()),
        np.concatenate([p.blocks for p in parts]),
        np.concatenate([p.session for p in parts]),
        tuple(dict.fromkeys(note for p in parts for note in p.notes)),
    )
    return _by_ready(whole)


def _by_ready(workload: Workload) -> Workload:
    order = np.argsort(workload.ready, kind="stable")
    if np.array_equal(order, np.arange(len(order))):
        return workload
    lengths = np.diff(workload.offsets)[order]
    offsets = offsets_of(lengths.tolist())
    # Index of every block in the old array, run by run in the new order.
    gather = np.repeat(workload.offsets[:-1][order] - offsets[:-1], lengths) + np.arange(
        len(workload.blocks)
    )
    return replace(
        workload,
        arrival=workload.arrival[order],
        ready=workload.ready[order],
        input_tokens=workload.input_tokens[order],
        output_tokens=workload.output_tokens[order],
        offsets=offsets,
        blocks=workload.blocks[gather],
        session=workload.session[order],
    )
