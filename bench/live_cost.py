"""The simulator's cost model of CPU engines, from chats with the running application."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx
import psutil

from bench.chats import Answer, ask
from bench.live_trace import Count, Messages, filled, words
from tools.replay.cost import (
    CostModel,
    DecodeReading,
    PrefillReading,
    fit_decode,
    fit_prefill,
    pairs,
)

TOKENS = (60, 200, 450, 900, 1800, 3600)
MORE_TOKENS = 120
ANSWER_TOKENS = 32
BATCH = 4
BURST = 16
EDGES, EDGE_TOKENS = 4, 24
PAUSE_S = 0.25  # before a chat alone, as there is one between chats of a trace


@dataclass(frozen=True)
class Readings:
    """Answers of one round: to chats ``alone``, to one on every replica at once (``crowd``), and
    to BATCH of them at once on one replica (``batch``), and to BURST short ones at once on all
    replicas (``burst``). The same chats in every round. ``edges``: answers to two prompts, of which
    one just fits a prefill pass and the other needs a second one for its last few tokens.
    ``alone_cpu_s``: processor time of the whole machine while the chats ``alone`` were answered."""

    alone: Sequence[Answer]
    crowd: Sequence[Answer]
    batch: Sequence[Answer]
    burst: Sequence[Answer]
    edges: Sequence[tuple[Answer, Answer]]
    alone_cpu_s: float


async def measure(url: str, replicas: int, rounds: int, chunk: int, count: Count) -> list[Readings]:
    """Chats of many lengths, cold and continued. ``count`` gives the tokens of a prompt. A round
    more than ``rounds`` warms the application up and is left out."""
    found = []
    # What all prompts begin with may be cached.
    same = count([{"role": "user", "content": ""}])
    async with httpx.AsyncClient(timeout=300) as client:
        for turn in range(rounds + 1):
            alone: list[Answer] = []
            crowd: list[Answer] = []
            before = _busy_s()
            for tokens in TOKENS:
                alone += await _twice(client, url, random.Random(f"{turn} {tokens}"), tokens)
            alone_cpu_s = _busy_s() - before
            for tokens in TOKENS:
                chances = [random.Random(f"{turn} {tokens} {k}") for k in range(replicas)]
                twos = await asyncio.gather(*(_twice(client, url, c, tokens) for c in chances))
                crowd += [answer for two in twos for answer in two]
            batch = await _batch(client, url, random.Random(f"batch {turn}"))
            burst = await _burst(client, url, random.Random(f"burst {turn}"))
            edges = []
            for k in range(EDGES):
                sizes = [chunk - EDGE_TOKENS, chunk + same + EDGE_TOKENS]
                if k % 2:  # neither is always asked first
                    sizes.reverse()
                chats = [filled(random.Random(f"{turn} {k} {size}"), count, size) for size in sizes]
                one, other = [await ask(client, url, chat, 1) for chat in chats]
                edges.append((other, one) if k % 2 else (one, other))
            found.append(Readings(alone, crowd, batch, burst, edges, alone_cpu_s))
    return found[1:]


def fitted(readings: Sequence[Readings], replicas: int, chunk: int) -> CostModel:
    """Of each chat the median over the rounds counts. All replicas are taken to share one host; a
    decode pass is a token of the answer."""
    alone = list(map(_median, zip(*(r.alone for r in readings), strict=True)))
    crowd = list(map(_median, zip(*(r.crowd for r in readings), strict=True)))
    _, _, token, pair = fit_prefill(alone, chunk)
    edges = [edge for r in readings for edge in r.edges]
    fixed, step, token, pair = fit_prefill(alone, chunk, _step(edges, chunk, token, pair))
    single = [_pass([answer]) for r in readings for answer in r.alone]
    several = [_pass(r.batch) for r in readings]
    decode_step, request, context = fit_decode([*single, *several])
    gateway = statistics.median(_between(r.burst, token / replicas) for r in readings)
    cost = CostModel(
        step,
        token,
        pair,
        decode_step,
        request,
        context,
        fixed_s=max(0.0, fixed - step - gateway),
        gateway_s=gateway,
        groups_per_host=replicas,
    )
    ratios = [
        (r.seconds - cost.fixed_s - gateway) / cost.request_s(r.tokens, r.hit, chunk)
        for r in crowd
        if r.tokens - r.hit >= chunk
    ]
    return replace(cost, crowding=max(1.0, statistics.median(ratios)))


def processors(readings: Sequence[Readings], cost: CostModel, chunk: int) -> float:
    """Processor seconds that the machine spends on a chat per second that the model gives it."""
    modelled = sum(
        alone_s(cost, a.prompt, a.cached, a.tokens, chunk) for r in readings for a in r.alone
    )
    return sum(r.alone_cpu_s for r in readings) / modelled


def alone_s(cost: CostModel, prompt: int, hit: int, answer: int, chunk: int) -> float:
    """Seconds that the model gives a chat to its last token while there is no other."""
    prefill = cost.request_s(prompt, hit, chunk)
    return cost.gateway_s + cost.fixed_s + prefill + answer * cost.decode_s(1, prompt)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _median(answers: Sequence[Answer]) -> PrefillReading:
    """The reading of the median time to the first token."""
    middle = sorted(answers, key=lambda answer: answer.ttft)[len(answers) // 2]
    return PrefillReading(middle.prompt, middle.cached, middle.ttft)


def _step(
    edges: Sequence[tuple[Answer, Answer]], chunk: int, token_s: float, pair_s: float
) -> float:
    """What a second prefill pass costs, whatever the time outside the engine. Raises ValueError
    where no pair of answers differs by one."""

    def spent(answer: Answer) -> float:
        new = answer.prompt - answer.cached
        return answer.ttft - new * token_s - pairs(new, answer.cached) * pair_s

    found = [
        spent(two) - spent(one)
        for one, two in edges
        if one.prompt - one.cached <= chunk < two.prompt - two.cached
    ]
    if not found:
        raise ValueError(f"no two prompts lie on both sides of {chunk} tokens")
    return max(0.0, statistics.median(found))


def _pass(answers: Sequence[Answer]) -> DecodeReading:
    """The time between two tokens of answers that were given at once, while all of them were:
    before the last one's first token others are still prefilled. Raises ValueError if there was
    no such time."""
    start, stop = max(a.pieces[0] for a in answers), min(a.pieces[-1] for a in answers)
    tokens = sum(
        sum(start < at <= stop for at in a.pieces) * a.tokens / len(a.pieces) for a in answers
    )
    if stop <= start or not tokens:
        raise ValueError(f"{len(answers)} answers were never given at the same time")
    context = sum(a.prompt for a in answers)
    return DecodeReading(len(answers), context, len(answers) * (stop - start) / tokens)


def _between(answers: Sequence[Answer], token_s: float) -> float:
    """The time from one chat's first token to the next one's, of chats that were asked at once, on
    average and less what engines take for their new tokens: they leave the gateway one by one."""
    first = [answer.pieces[0] for answer in answers]
    new = statistics.mean(answer.prompt - answer.cached for answer in answers)
    return max(0.0, (max(first) - min(first)) / (len(first) - 1) - new * token_s)


async def _twice(
    client: httpx.AsyncClient, url: str, chance: random.Random, tokens: int
) -> list[Answer]:
    """A cold chat, and the same with a further question."""
    messages: Messages = [{"role": "user", "content": words(chance, tokens)}]
    await asyncio.sleep(PAUSE_S)
    first = await ask(client, url, messages, ANSWER_TOKENS)
    more = [
        {"role": "assistant", "content": words(chance, ANSWER_TOKENS)},
        {"role": "user", "content": words(chance, MORE_TOKENS)},
    ]
    await asyncio.sleep(PAUSE_S)
    return [first, await ask(client, url, [*messages, *more], ANSWER_TOKENS)]


async def _batch(client: httpx.AsyncClient, url: str, chance: random.Random) -> list[Answer]:
    """Chats that continue the same one at the same time, hence on one replica."""
    messages: Messages = [{"role": "user", "content": words(chance, TOKENS[2])}]
    first = await ask(client, url, messages, ANSWER_TOKENS)
    said = {"role": "assistant", "content": first.text}
    chats = [[*messages, said, {"role": "user", "content": words(chance, 4)}] for _ in range(BATCH)]
    return list(await asyncio.gather(*(ask(client, url, chat, ANSWER_TOKENS) for chat in chats)))


async def _burst(client: httpx.AsyncClient, url: str, chance: random.Random) -> list[Answer]:
    """Short chats at the same time."""
    chats: list[Messages] = [[{"role": "user", "content": words(chance, 20)}] for _ in range(BURST)]
    return list(await asyncio.gather(*(ask(client, url, chat, 2) for chat in chats)))
