"""A small multi-turn trace as chats for a running application, and as a workload to simulate."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np

from bench.chats import Answer, ask
from tools.replay.workload import Workload, offsets_of

WORDS = ("red", "blue", "one", "two", "circle", "square", "what", "is", "picture", "how", "many")
WORDS_PER_TOKEN = 0.7
SYSTEM_TOKENS = 20

Messages = list[dict[str, Any]]
Count = Callable[[Messages], int]


@dataclass(frozen=True)
class Call:
    """A chat that is asked ``at`` seconds after the start."""

    at: float
    session: int
    messages: Messages


def words(chance: random.Random, tokens: float) -> str:
    """Text of about so many tokens."""
    return " ".join(chance.choices(WORDS, k=max(4, round(tokens * WORDS_PER_TOKEN))))


def filled(chance: random.Random, count: Count, tokens: int) -> Messages:
    """A question whose prompt has as many tokens as words allow without exceeding ``tokens``."""
    text = words(chance, tokens / 2)
    found = [{"role": "user", "content": text}]
    while True:
        text = f"{text} {chance.choice(WORDS)}"
        longer = [{"role": "user", "content": text}]
        if count(longer) > tokens:
            return found
        found = longer


def calls(trace: Workload, sessions: int, shrink: float, seed: int) -> list[Call]:
    """Conversations with turns, lengths and times of some sessions of three turns and more.

    They are drawn from the whole trace by ``seed``: the first ones all begin at once.

    Lengths are divided by ``shrink``. A turn's prompt is the one before with an answer of the
    recorded length and a new question, whatever the model says: the next turn does not wait.
    """
    numbers, counts = np.unique(trace.session, return_counts=True)
    chance = random.Random(seed)
    several = numbers[counts >= 3].tolist()
    chosen = chance.sample(several, min(sessions, len(several)))
    system = {"role": "system", "content": words(chance, SYSTEM_TOKENS)}
    talks: dict[int, tuple[Messages, float]] = {}
    found: list[Call] = []
    for i in np.flatnonzero(np.isin(trace.session, chosen)):
        session, tokens = int(trace.session[i]), trace.input_tokens[i] / shrink
        messages, before = talks.get(session, ([system], SYSTEM_TOKENS))
        messages = [*messages, {"role": "user", "content": words(chance, tokens - before)}]
        found.append(Call(float(trace.arrival[i]), session, messages))
        answer = trace.output_tokens[i] / shrink
        said = {"role": "assistant", "content": words(chance, answer)}
        talks[session] = ([*messages, said], tokens + answer)
    return found


async def replay(url: str, trace: Sequence[Call], most: int) -> tuple[list[Call], list[Answer]]:
    """Ask every call at its time, however many are still being answered.

    Returns the calls in the order and at the times at which they were really asked.
    """
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        start = time.perf_counter()

        async def one(call: Call) -> tuple[Call, Answer]:
            await asyncio.sleep(max(0.0, start + call.at - time.perf_counter()))
            answer = await ask(client, url, call.messages, most)
            return replace(call, at=answer.asked - start), answer

        asked = await asyncio.gather(*(one(call) for call in trace))
    asked.sort(key=lambda pair: pair[0].at)
    return [call for call, _ in asked], [answer for _, answer in asked]


def workload(name: str, trace: Sequence[Call], prompts: Sequence[list[int]], most: int) -> Workload:
    """The same calls for the simulator, with the token ids of each prompt; blocks of one token."""
    numbers: dict[tuple[int, int], int] = {}
    paths = []
    for prompt in prompts:
        node, path = -1, []
        for token in prompt:
            node = numbers.setdefault((node, token), len(numbers))
            path.append(node)
        paths.append(path)
    arrival = np.array([call.at for call in trace])
    made = Workload(
        name,
        1,
        arrival,
        arrival,
        np.array([len(prompt) for prompt in prompts], np.int64),
        np.full(len(trace), most, np.int64),
        offsets_of([len(path) for path in paths]),
        np.array([node for path in paths for node in path], np.int64),
        np.array([call.session for call in trace], np.int64),
    )
    made.check()
    return made
