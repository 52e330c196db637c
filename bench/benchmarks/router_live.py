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
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import yaml

from bench.application import ROOT, application
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
    with _side("kv_affinity") as ours, _side("power_of_two") as theirs:
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


@contextmanager
def _side(policy: str) -> Iterator[str]:
    """An application with two replicas and this router; its address."""
    document = yaml.safe_load((ROOT / "configs/pocket.yaml").read_text())
    llm = document["llm"]
    llm["replicas"], llm["num_cpus"] = REPLICAS, 0.25
    llm["router"] = {**llm.get("router", {}), "policy": policy}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(document))
        with application(str(path)) as running:
            yield running.url


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
                    answered, text = await _ask(client, url, messages, turn)
                turns.append(answered)
                messages.append({"role": "assistant", "content": text})
                # A user reads; meanwhile others have their turns.
                await asyncio.sleep(0.2 * chance.random())

        await asyncio.gather(*(converse(number) for number in range(conversations)))
    return turns


async def _ask(
    client: httpx.AsyncClient, url: str, messages: list[dict[str, Any]], number: int
) -> tuple[Turn, str]:
    body = {
        "model": "mimo-pocket",
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start, first, text = time.perf_counter(), 0.0, ""
    usage: dict[str, Any] = {}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = orjson.loads(line[6:])
            first = first or time.perf_counter()
            for choice in event.get("choices") or ():
                text += choice["delta"].get("content") or ""
            usage = event.get("usage") or usage
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or 0
    return Turn(number, first - start, usage["prompt_tokens"], cached), text
