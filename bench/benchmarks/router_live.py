"""TTFT of later turns over two engine replicas: our router against Serve's power of two choices.

Both applications run at the same time with two language-model replicas each and answer the same
conversations in turns, one application after the other: a long first message, short later ones. A
few conversations are open at once, so both routers see load. The client measures the time to the
first piece of the answer; the engine reports the cached tokens.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from dataclasses import dataclass
from typing import Any

import httpx

from bench.chats import ask, replicas
from bench.result import Bar, Figure, Result

REPLICAS = 2
TURNS = 5
AT_ONCE = 2
FIRST_WORDS, LATER_WORDS = 800, 12
ANSWER_TOKENS = 8
WORDS = ("red", "blue", "one", "two", "circle", "square", "what", "is", "picture", "how", "many")


@dataclass(frozen=True)
class Turn:
    """One answered turn: seconds to its first piece, prompt tokens and those of them cached."""

    number: int
    ttft: float
    prompt: int
    cached: int


def run(quick: bool) -> Result:
    rounds, conversations = (2, 6) if quick else (5, 10)
    with replicas(REPLICAS, "kv_affinity") as ours, replicas(REPLICAS, "power_of_two") as theirs:
        sides = {"ours": ours, "power_of_two": theirs}
        found: dict[str, list[list[Turn]]] = {name: [] for name in sides}
        for number in range(rounds):
            names = list(sides) if number % 2 else list(reversed(sides))
            for name in names:
                talk = _talk(sides[name], number, conversations)
                found[name].append(asyncio.run(talk))
    figures: dict[str, Figure | float] = {}
    for name, talks in found.items():
        later = [[turn for turn in talk if turn.number > 1] for talk in talks]
        figures[f"{name}_later_ttft_ms"] = Figure.of([_mean(talk) * 1e3 for talk in later])
        first = [_mean([turn for turn in talk if turn.number == 1]) * 1e3 for talk in talks]
        figures[f"{name}_first_ttft_ms"] = Figure.of(first)
        cached = [sum(t.cached for t in talk) / sum(t.prompt for t in talk) for talk in later]
        figures[f"{name}_cached_share"] = Figure.of(cached)
    ratios = [
        _mean([t for t in b if t.number > 1]) / _mean([t for t in a if t.number > 1])
        for a, b in zip(found["ours"], found["power_of_two"], strict=True)
    ]
    figures["ttft_ratio"] = Figure.of(ratios)
    prompts = [turn.prompt for talk in found["ours"] for turn in talk if turn.number == TURNS]
    return Result(
        {
            "replicas": REPLICAS,
            "rounds": rounds,
            "conversations": conversations,
            "turns": TURNS,
            "at_once": AT_ONCE,
            "last_prompt_tokens": round(statistics.mean(prompts)),
        },
        figures,
        {"later_ttft_ratio": Bar(statistics.median(ratios), at_least=1.5)},
    )


def _mean(turns: list[Turn]) -> float:
    return statistics.mean(turn.ttft for turn in turns)


async def _talk(url: str, round_number: int, conversations: int) -> list[Turn]:
    """All turns of all conversations, AT_ONCE of them open at a time."""
    gate = asyncio.Semaphore(AT_ONCE)
    turns: list[Turn] = []
    async with httpx.AsyncClient(timeout=120) as client:

        async def converse(number: int) -> None:
            chance = random.Random(1000 * round_number + number)
            messages: list[dict[str, Any]] = []
            for turn in range(1, TURNS + 1):
                words = chance.choices(WORDS, k=FIRST_WORDS if turn == 1 else LATER_WORDS)
                content = f"{round_number} {number} {turn} {' '.join(words)}"
                messages.append({"role": "user", "content": content})
                async with gate:
                    answer = await ask(client, url, messages, ANSWER_TOKENS)
                turns.append(Turn(turn, answer.ttft, answer.prompt, answer.cached))
                messages.append({"role": "assistant", "content": answer.text})
                # A user reads; meanwhile others have their turns.
                await asyncio.sleep(0.2 * chance.random())

        await asyncio.gather(*(converse(number) for number in range(conversations)))
    return turns
