"""Tokens per second by batch size: the engine without MTP against transformers' ``generate``.

Same checkpoint, float32, greedy, same prompts and thread count; readings alternate between the
sides. transformers runs with its KV cache and, per batch size, whichever of its expert
implementations was fastest in a trial. Prefill of the short prompts is part of both times.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from app.settings import checkpoint_directory, config_path, load_settings
from bench.result import Bar, Figure, Result
from llm import engine
from llm.arguments import engine_arguments
from tools.pocket.oracle import load_oracle

BARS = {1: 1.0, 8: 2.0, 32: 3.0}
PROMPT = 64


def run(quick: bool) -> Result:
    new, repeats = (32, 2) if quick else (128, 5)
    settings = load_settings(config_path(None))
    directory = checkpoint_directory(settings)
    ours = settings.llm.model_dump() | {
        "model_path": str(directory),
        "served_name": settings.model.served_name,
        "dtype": "float32",
        "max_running_requests": max(BARS),
        "mtp": {"enabled": False, "steps": 0},
    }
    engine.prepare(ours)
    running = engine.start(engine_arguments(ours))
    try:
        return _measure(running, directory, new, repeats)
    finally:
        running.shutdown()


def _measure(running: Any, directory: Path, new: int, repeats: int) -> Result:
    model = load_oracle(directory)
    figures: dict[str, Figure | float] = {}
    bars: dict[str, Bar] = {}
    chosen: dict[str, str] = {}
    for batch, bound in BARS.items():
        _engine(running, batch, 8, seed=0)
        chosen[str(batch)] = _fastest_experts(model, batch)
        rates: dict[str, list[float]] = {"engine": [], "transformers": []}
        for i in range(repeats):
            rates["engine"].append(batch * new / _engine(running, batch, new, seed=i + 1))
            rates["transformers"].append(batch * new / _generate(model, batch, new, seed=i + 1))
        for side, readings in rates.items():
            figures[f"{side}_{batch}_tokens_per_s"] = Figure.of(readings)
        ratio = Figure.of([a / b for a, b in zip(*rates.values(), strict=True)]).median
        bars[f"ratio_{batch}"] = Bar(ratio, at_least=bound)
    sizes = {
        "prompt": PROMPT,
        "new_tokens": new,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "transformers_experts": chosen,
    }
    return Result(sizes, figures, bars)


def _prompts(batch: int, seed: int) -> torch.Tensor:
    """New ones for every seed, so that the engine's prefix cache does not help."""
    generator = torch.Generator().manual_seed(1000 * batch + seed)
    return torch.randint(0, 256, (batch, PROMPT), generator=generator)


def _engine(running: Any, batch: int, new: int, seed: int) -> float:
    """Seconds for one batch."""
    prompts = _prompts(batch, seed).tolist()
    sampling = {"temperature": 0.0, "max_new_tokens": new, "ignore_eos": True}
    start = time.perf_counter()
    running.generate(input_ids=prompts, sampling_params=sampling)
    return time.perf_counter() - start


def _generate(model: Any, batch: int, new: int, seed: int) -> float:
    """Seconds for one batch; the fixed length is transformers' own way to ignore the end."""
    prompts = _prompts(batch, seed)
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            use_cache=True,
        )
    return time.perf_counter() - start


def _fastest_experts(model: Any, batch: int) -> str:
    seconds = {}
    for name in ("eager", "batched_mm", "grouped_mm"):
        model.set_experts_implementation(name)
        _generate(model, batch, 2, seed=0)
        seconds[name] = _generate(model, batch, 8, seed=0)
    best = min(seconds, key=lambda name: seconds[name])
    model.set_experts_implementation(best)
    return best
