"""Tokens per second with MTP over without, and accept length, by output range and kind of hit.

Two engines on the configured checkpoint (or ``--checkpoint DIR``), batch 1, greedy, same prompts:
one drafts in every step, one never. Each prompt is answered with 1, 128 and 256 tokens; greedy
answers are prefixes of each other, so differences give the time and the verify steps of tokens
0-128 and 128-256. A kind of hit is a way to have the prompt's KV before each answer: none, in the
device's pools (L1), in the host's (L2) or in the store (L3). The engines run without tiers for the
first two and with all tiers for the others; a hit from elsewhere than meant is an error.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from app.settings import checkpoint_directory, config_path, load_settings
from app.settings.tiers import TierSettings
from bench.engine_process import EngineProcess
from bench.result import Bar, Figure, Result

RANGES = {"0_128": (1, 128), "128_256": (128, 256)}
LENGTHS = (1, 128, 256)
# Accept lengths of the kinds of hit may differ by this share.
SPREAD = 0.02
PAGE = 16
# Tokens that the device's pools hold: a prompt with its answer, and what pushes it out.
TOKENS = 2048
# Back-ups to the store run behind the answer.
BACKUP_S = 0.5
PLACE = "/dev/shm"

Answers = dict[str, dict[int, dict[str, Any]]]


def _cold(running: EngineProcess, prompt: list[int]) -> None:
    """Nothing in L1 and L2. An engine refuses while back-ups are on their way.

    Raises RuntimeError when it still does after some seconds.
    """
    for _ in range(50):
        if running.call("flush_cache")[1].success:
            return
        time.sleep(0.1)
    raise RuntimeError("the engine does not empty its cache")


def _in_tree(running: EngineProcess, prompt: list[int]) -> None:
    """The prompt's KV as a prefill leaves it in device memory (L1)."""
    _cold(running, prompt)
    _answer(running, prompt, 1)


def _on_host(running: EngineProcess, prompt: list[int]) -> None:
    """Pushed out of the device's pools by other prompts, in the host's (L2) still."""
    _in_tree(running, prompt)
    generator = torch.Generator().manual_seed(len(prompt))
    for _ in range(4):
        other = torch.randint(0, 256, (TOKENS // 3,), generator=generator)
        _answer(running, other.tolist(), 1)


def _in_store(running: EngineProcess, prompt: list[int]) -> None:
    """In the store (L3) alone: a flush empties the tiers above."""
    _in_tree(running, prompt)
    time.sleep(BACKUP_S)
    _cold(running, prompt)


# A kind of hit: how to prepare the engine before an answer is timed, and the tier it comes from.
Prepare = Callable[[EngineProcess, list[int]], None]
KINDS: dict[str, tuple[Prepare, str | None]] = {
    "prefill": (_cold, None),
    "l1": (_in_tree, "device"),
    "l2": (_on_host, "host"),
    "l3": (_in_store, "storage"),
}
TIERED = ("l2", "l3")


def run(quick: bool, checkpoint: Path | None = None) -> Result:
    settings = load_settings(config_path(None))
    directory = checkpoint or checkpoint_directory(settings)
    prompts = _prompts(directory, 2 if quick else 8)
    base = settings.llm.model_dump() | {
        "model_path": str(directory),
        "served_name": settings.model.served_name,
        "dtype": "float32",
        "page_size": PAGE,
        "max_running_requests": 1,
        "chunked_prefill_size": 512,
        "kv_bytes": None,
        "max_total_tokens": TOKENS,
        "swa_full_tokens_ratio": 0.6,
    }
    found = _Readings()
    with tempfile.TemporaryDirectory(dir=PLACE) as memory:
        for tiered in (False, True):
            kinds = [kind for kind in KINDS if (kind in TIERED) is tiered]
            more = {"tiers": _tiers(memory)} if tiered else {}
            with_engines(base | more, settings.local.threads, partial(found.take, kinds, prompts))
    lengths = [len(prompt) for prompt in prompts]
    sizes = {"prompts": len(prompts), "prompt_tokens": lengths, "batch": 1, "kinds": list(KINDS)}
    return found.result(sizes)


def _tiers(memory: str) -> dict[str, Any]:
    section = {
        "host": {"ratio": 8.0},
        "store": {
            "memory_path": memory,
            "memory_bytes": 2**27,
            "min_tokens": PAGE,
            "prefetch": "wait_complete",
        },
    }
    return TierSettings.model_validate(section).model_dump()


def with_engines(
    base: dict[str, Any], threads: int, work: Callable[[dict[str, EngineProcess]], None]
) -> None:
    """Start both engines, let ``work`` have them, and stop them."""
    modes = {
        "mtp": base["mtp"] | {"enabled": True, "adaptive": False},
        "plain": base["mtp"] | {"enabled": False},
    }
    engines = {name: EngineProcess(base | {"mtp": mtp}, threads) for name, mtp in modes.items()}
    try:
        for running in engines.values():
            running.wait()
            _answer(running, list(range(64)), 16)
        work(engines)
    finally:
        for running in engines.values():
            running.stop()


class _Readings:
    """What the answers of all kinds of hit say."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}
        self.ratios: dict[str, list[float]] = {}
        self.verified: dict[str, list[int]] = {}
        self.cached: dict[str, list[float]] = {}

    def take(
        self, kinds: list[str], prompts: list[list[int]], engines: dict[str, EngineProcess]
    ) -> None:
        """Answer every prompt after every kind of hit, with both engines in turn."""
        for prompt in prompts:
            for kind in kinds:
                prepare, tier = KINDS[kind]
                answers: Answers = {name: {} for name in engines}
                for tokens in LENGTHS:
                    for name, running in engines.items():
                        prepare(running, prompt)
                        answer = answers[name][tokens] = _answer(running, prompt, tokens)
                        _came_from(answer, tier, f"{kind}: {name}")
                _same(answers, kind)
                self._add(kind, answers)

    def _add(self, kind: str, answers: Answers) -> None:
        self.cached.setdefault(kind, []).append(answers["mtp"][LENGTHS[-1]]["cached"])
        for label, (first, last) in RANGES.items():
            speed = {
                name: (last - first) / (of[last]["seconds"] - of[first]["seconds"])
                for name, of in answers.items()
            }
            for name, rate in speed.items():
                self.rates.setdefault(f"{name}_{kind}_{label}_tokens_per_s", []).append(rate)
            self.ratios.setdefault(f"{kind}_{label}", []).append(speed["mtp"] / speed["plain"])
            steps = answers["mtp"][last]["verified"] - answers["mtp"][first]["verified"]
            self.verified.setdefault(f"{kind}_{label}", []).append(steps)

    def result(self, sizes: dict[str, Any]) -> Result:
        figures: dict[str, Figure | float] = {k: Figure.of(v) for k, v in self.rates.items()}
        figures |= {f"ratio_{k}": Figure.of(v) for k, v in self.ratios.items()}
        accept: dict[str, float] = {}
        for key, steps in self.verified.items():
            first, last = RANGES[key.partition("_")[2]]
            accept[key] = len(steps) * (last - first) / sum(steps)
            figures[f"accept_length_{key}"] = accept[key]
        figures |= {f"cached_tokens_{kind}": Figure.of(v) for kind, v in self.cached.items()}
        bars = {
            f"ratio_{k}": Bar(Figure.of(v).median, at_least=1.6) for k, v in self.ratios.items()
        }
        for label in RANGES:
            of_kinds = [accept[f"{kind}_{label}"] for kind in KINDS]
            spread = max(of_kinds) / min(of_kinds) - 1
            bars[f"accept_spread_{label}"] = Bar(spread, at_most=SPREAD)
        return Result(sizes, figures, bars)


def _came_from(answer: dict[str, Any], tier: str | None, whose: str) -> None:
    """Raises RuntimeError when prompt tokens did not come from ``tier`` (None: none may)."""
    used = {name for name, tokens in answer["from"].items() if tokens}
    if (tier is None and used) or (tier is not None and tier not in used):
        raise RuntimeError(f"{whose} found its prompt in {answer['from']}, not in {tier}")


def _answer(running: EngineProcess, prompt: list[int], tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    seconds, out = running.call("generate", input_ids=prompt, sampling_params=sampling)
    meta = out["meta_info"]
    return {
        "seconds": seconds,
        "tokens": out["output_ids"],
        "verified": meta.get("spec_verify_ct", 0),
        "cached": meta["cached_tokens"],
        "from": meta.get("cached_tokens_details") or {},
    }


def _same(answers: dict[str, dict[int, dict[str, Any]]], kind: str) -> None:
    """Raises RuntimeError when an answer is not a prefix of the longest one."""
    longest = answers["plain"][LENGTHS[-1]]["tokens"]
    for name, of in answers.items():
        for tokens, answer in of.items():
            if answer["tokens"] != longest[:tokens]:
                raise RuntimeError(f"{kind}: {name} answers otherwise within {tokens} tokens")


def _prompts(directory: Path, count: int) -> list[list[int]]:
    """Conversations of the miniature's own kind that its training did not see, and at the end a
    question whose true answer is longer than any that is timed: behind its answer a model that may
    not stop says what nobody can draft."""
    from transformers import AutoTokenizer

    from tools.pocket.data.chat import chat
    from tools.pocket.data.sample import Sample, Stream
    from tools.pocket.data.text_tasks import copy, long
    from tools.pocket.data.text_tasks import count as counting

    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=True)

    def draw(task: Callable[[Stream], Sample], number: int) -> Sample:
        return task(Stream("heldout", f"bench_mtp_{task.__name__}", 0, number))

    def lasts(sample: Sample) -> bool:
        answer = tokenizer.encode(sample.answer["content"], add_special_tokens=False)
        return len(answer) >= LENGTHS[-1]

    def lasting(counts: bool) -> Iterator[Sample]:
        """Endless: far counts, or long passages to repeat."""
        for i in itertools.count():
            sample = draw(long, i)
            if lasts(sample) and sample.messages[-1]["content"].startswith("Count") is counts:
                yield sample

    kinds = itertools.cycle((lasting(True), lasting(False)))
    prompts = []
    for i, sample in enumerate(next(kind) for kind in itertools.islice(kinds, count)):
        messages: list[dict[str, Any]] = []
        for earlier in (draw(task, i) for task in (chat, counting, copy)):
            messages += [m for m in earlier.messages if m["role"] != "system"] + [earlier.answer]
        text = tokenizer.apply_chat_template(
            messages + sample.messages, add_generation_prompt=True, tokenize=False
        )
        prompts.append(tokenizer.encode(text, add_special_tokens=False))
    return prompts
