"""One request on its way through a replica."""

from __future__ import annotations


class Request:
    """``path``: block ids. ``hit`` of ``tokens`` were cached when it started; ``done`` are in KV
    now; the first ``depth`` blocks are locked in device memory. ``expected``: uncached tokens as
    its router counts them. ``tier``: its priority, higher is better.
    """

    __slots__ = (
        "arrival",
        "branch",
        "depth",
        "done",
        "expected",
        "hit",
        "index",
        "joined",
        "output",
        "path",
        "queued",
        "session",
        "tier",
        "tokens",
    )

    def __init__(
        self,
        index: int,
        arrival: float,
        path: list[int],
        tokens: int,
        output: int,
        session: int,
        tier: int = 0,
    ) -> None:
        self.index = index
        self.arrival = arrival
        self.path = path
        self.tokens = tokens
        self.output = output
        self.session = session
        self.tier = tier
        self.queued = 0.0
        self.joined = 0
        self.expected = tokens
        self.hit = 0
        self.done = 0
        self.depth = 0
        self.branch = 0
