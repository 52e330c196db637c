"""Tokens per second with MTP over without, and accept length, by output range and kind of hit.

Two engines on the configured checkpoint, batch 1, greedy, same prompts: one drafts in every step,
one never. Each prompt is answered with 1, 128 and 256 tokens; greedy answers are prefixes of each
other, so differences give the time and the verify steps of tokens 0-128 and 128-256. A kind of
hit is a way to have the prompt's KV before each answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.settings import checkpoint_directory, config_path, load_settings
from bench.engine_process import EngineProcess
from bench.result import Bar, Figure, Result

RANGES = {"0_128": (1, 128), "128_256": (128, 256)}
LENGTHS = (1, 128, 256)
# Accept lengths of the kinds of hit may differ by this share.
SPREAD = 0.02


def _cold(running: EngineProcess, prompt: list[int]) -> None:
    running.call("flush_cache")


def _in_tree(running: EngineProcess, prompt: list[int]) -> None:
    """The prompt's KV as a prefill leaves it in device memory (L1)."""
    running.call("flush_cache")
    _answer(running, prompt, 1)


# A kind of hit: how to prepare the engine before an answer is timed.
KINDS: dict[str, Callable[[EngineProcess, list[int]], None]] = {"prefill": _cold, "l1": _in_tree}


def run(quick: bool) -> Result:
    prompts = _prompts(2 if quick else 8)
    settings = load_settings(config_path(None))
    base = settings.llm.model_dump() | {
        "model_path": str(checkpoint_directory(settings)),
        "served_name": settings.model.served_name,
        "dtype": "float32",
    }
    modes = {
        "mtp": base["mtp"] | {"enabled": True, "adaptive": False},
        "plain": base["mtp"] | {"enabled": False},
    }
    threads = settings.local.threads
    engines = {name: EngineProcess(base | {"mtp": mtp}, threads) for name, mtp in modes.items()}
    try:
        for running in engines.values():
            running.wait()
            _answer(running, prompts[0], 16)
        return _measure(engines, prompts)
    finally:
        for running in engines.values():
            running.stop()


def _measure(engines: dict[str, EngineProcess], prompts: list[list[int]]) -> Result:
    rates: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    verified: dict[str, list[int]] = {}
    cached: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for prompt in prompts:
        for kind, prepare in KINDS.items():
            answers: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in engines}
            for tokens in LENGTHS:
                for name, running in engines.items():
                    prepare(running, prompt)
                    answers[name][tokens] = _answer(running, prompt, tokens)
            _same(answers, kind)
            cached[kind].append(answers["mtp"][LENGTHS[-1]]["cached"])
            for label, (first, last) in RANGES.items():
                speed = {
                    name: (last - first) / (of[last]["seconds"] - of[first]["seconds"])
                    for name, of in answers.items()
                }
                for name, rate in speed.items():
                    rates.setdefault(f"{name}_{kind}_{label}_tokens_per_s", []).append(rate)
                ratios.setdefault(f"{kind}_{label}", []).append(speed["mtp"] / speed["plain"])
                steps = answers["mtp"][last]["verified"] - answers["mtp"][first]["verified"]
                verified.setdefault(f"{kind}_{label}", []).append(steps)
    figures: dict[str, Figure | float] = {k: Figure.of(v) for k, v in rates.items()}
    figures |= {f"ratio_{k}": Figure.of(v) for k, v in ratios.items()}
    accept: dict[str, float] = {}
    for key, steps in verified.items():
        first, last = RANGES[key.partition("_")[2]]
        accept[key] = len(prompts) * (last - first) / sum(steps)
        figures[f"accept_length_{key}"] = accept[key]
    figures |= {f"cached_tokens_{kind}": Figure.of(v) for kind, v in cached.items()}
    bars = {f"ratio_{k}": Bar(Figure.of(v).median, at_least=1.6) for k, v in ratios.items()}
    for label in RANGES:
        of_kinds = [accept[f"{kind}_{label}"] for kind in KINDS]
        spread = max(of_kinds) / min(of_kinds) - 1
        bars[f"accept_spread_{label}"] = Bar(spread, at_most=SPREAD)
    lengths = [len(prompt) for prompt in prompts]
    sizes = {"prompts": len(prompts), "prompt_tokens": lengths, "batch": 1, "kinds": list(KINDS)}
    return Result(sizes, figures, bars)


def _answer(running: EngineProcess, prompt: list[int], tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    seconds, out = running.call("generate", input_ids=prompt, sampling_params=sampling)
    meta = out["meta_info"]
    return {
        "seconds": seconds,
        "tokens": out["output_ids"],
        "verified": meta.get("spec_verify_ct", 0),
        "cached": meta["cached_tokens"],
    }


def _same(answers: dict[str, dict[int, dict[str, Any]]], kind: str) -> None:
    """Raises RuntimeError when an answer is not a prefix of the longest one."""
    longest = answers["plain"][LENGTHS[-1]]["tokens"]
    for name, of in answers.items():
        for tokens, answer in of.items():
            if answer["tokens"] != longest[:tokens]:
                raise RuntimeError(f"{kind}: {name} answers otherwise within {tokens} tokens")


def _prompts(count: int) -> list[list[int]]:
    """Conversations of the miniature's own kind that its training did not see."""
    from transformers import AutoTokenizer

    from tools.pocket.data.chat import chat
    from tools.pocket.data.sample import Stream
    from tools.pocket.data.text_tasks import copy
    from tools.pocket.data.text_tasks import count as counting

    directory = checkpoint_directory(load_settings(config_path(None)))
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
    prompts = []
    for i in range(count):
        messages: list[dict[str, Any]] = []
        for task in (chat, counting, copy, counting, copy):
            sample = task(Stream("heldout", f"bench_mtp_{task.__name__}_{len(messages)}", 0, i))
            messages += [m for m in sample.messages if m["role"] != "system"] + [sample.answer]
        text = tokenizer.apply_chat_template(
            messages[:-1], add_generation_prompt=True, tokenize=False
        )
        prompts.append(tokenizer.encode(text, add_special_tokens=False))
    return prompts
