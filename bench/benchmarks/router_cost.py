"""Microseconds of a routing decision by prompt length and replica count, hashing included.

A decision is what a gateway does for a chat: hash its text into blocks and rank the replicas. Each
replica holds conversations of its own and the system prompt that all share, so every lookup walks
the whole prompt and every replica has a match. The other side is what the hashing replaces: one
tokenisation of the same text.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from app.settings import checkpoint_directory, config_path, load_settings
from bench.result import Bar, Figure, Result
from llm.router.blocks import BYTES_PER_TOKEN, chat_blocks, estimate
from llm.router.prompt import Prompt
from llm.router.report import Report
from llm.router.view import RouterView

REPLICAS = (10, 100, 1000)
TOKENS = (1_000, 10_000, 100_000)
CONVERSATIONS = 4  # on each replica
MOST = (TOKENS[-1], REPLICAS[-1])


def run(quick: bool) -> Result:
    repeats = 150 if quick else 1000
    figures: dict[str, Figure | float] = {}
    worst = 0.0
    chats = {tokens: _chat(tokens, seed=tokens) for tokens in TOKENS}
    for replicas in REPLICAS:
        view = _view(replicas, {tokens: _prompt(chat) for tokens, chat in chats.items()})
        for tokens, chat in chats.items():
            readings = sorted(_decide(view, chat) for _ in range(repeats))
            p99 = readings[int(0.99 * len(readings))] * 1e6
            figures[f"{tokens}_tokens_{replicas}_replicas_p50_us"] = (
                statistics.median(readings) * 1e6
            )
            figures[f"{tokens}_tokens_{replicas}_replicas_p99_us"] = p99
            if (tokens, replicas) == MOST:
                worst = p99
                prompt = _prompt(chat)
                ranked = [_time(partial(view.rank, prompt, first=4)) for _ in range(repeats)]
                figures["of_it_ranking_us"] = Figure.of([s * 1e6 for s in ranked])
        view.check()
    encode = _tokenizer()
    for tokens, chat in chats.items():
        text = "".join(message["content"] for message in chat["messages"])
        times = [_time(lambda t=text: encode(t)) * 1e6 for _ in range(3 if quick else 10)]
        figures[f"{tokens}_tokens_tokenise_us"] = Figure.of(times)
    return Result(
        {
            "repeats": repeats,
            "replicas": list(REPLICAS),
            "tokens": list(TOKENS),
            "bytes_per_token": BYTES_PER_TOKEN,
            "conversations_per_replica": CONVERSATIONS,
        },
        figures,
        {"p99_us_100k_tokens_1000_replicas": Bar(worst, at_most=2000)},
    )


def _decide(view: RouterView, chat: dict[str, Any]) -> float:
    return _time(lambda: view.rank(_prompt(chat), first=4))


def _time(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _prompt(chat: dict[str, Any]) -> Prompt:
    return estimate(list(chat_blocks(chat, ())))


def _chat(tokens: int, seed: int) -> dict[str, Any]:
    """A system prompt that all share and messages of about 2,000 tokens."""
    chance = random.Random(seed)
    size = int(tokens * BYTES_PER_TOKEN)
    system = "You are a careful assistant. " * 80
    messages = [{"role": "system", "content": system}]
    left = size - len(system)
    while left > 0:
        words = " ".join(f"{chance.getrandbits(28):x}" for _ in range(1000))
        messages.append({"role": "user", "content": words[: min(left, 8000)]})
        left -= len(messages[-1]["content"])
    return {"model": "m", "messages": messages}


def _view(replicas: int, prompts: dict[int, Prompt]) -> RouterView:
    """Replicas with loads, conversations of their own, and each a share of every prompt."""
    chance = random.Random(replicas)
    view = RouterView()
    names = [f"replica-{number}" for number in range(replicas)]
    view.set_replicas(names)
    for number, name in enumerate(names):
        held: dict[int, bool] = {}
        for prompt in prompts.values():
            depth = _depth(prompt.blocks, number)
            held |= dict.fromkeys(prompt.blocks[:depth], True)
        for _ in range(CONVERSATIONS):
            held |= {chance.getrandbits(64): True for _ in range(40)}
        view.report(name, Report(1.0, chance.randrange(0, 20_000), held))
    return view


def _depth(blocks: Sequence[int], number: int) -> int:
    """How much of a prompt a replica holds: many a little, some more, one in 100 all of it."""
    if number % 100 == 7:
        return len(blocks)
    return max(2, len(blocks) * (number % 10) // 20)


def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    settings = load_settings(config_path(None))
    tokenizer = AutoTokenizer.from_pretrained(
        str(checkpoint_directory(settings)), trust_remote_code=True
    )
    return lambda text: tokenizer(text, add_special_tokens=False)
