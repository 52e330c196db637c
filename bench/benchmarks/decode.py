"""Tokens per second by batch size: the engine against transformers' ``generate``.

Same checkpoint, float32, greedy, same prompts; readings alternate between the sides. The engine
runs twice: without MTP, which the bars are for (both sides then take one token per step), and in
its default mode, with MTP where it pays, each with ``llm.decoder_threads``. transformers runs with
its KV cache and, per batch size, whichever of its expert implementations and thread counts was
fastest in a trial. Prefill of the short prompts is part of all times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from app.settings import checkpoint_directory, config_path, load_settings
from bench.engine_process import EngineProcess
from bench.result import Bar, Figure, Result
from tools.pocket.oracle import load_oracle

BARS = {1: 1.0, 8: 2.0, 32: 3.0}
PROMPT = 64


def run(quick: bool, checkpoint: Path | None = None) -> Result:
    new, repeats = (64, 3) if quick else (128, 5)
    settings = load_settings(config_path(None))
    directory = checkpoint or checkpoint_directory(settings)
    default = settings.llm.model_dump() | {
        "model_path": str(directory),
        "served_name": settings.model.served_name,
        "dtype": "float32",
        "max_running_requests": max(BARS),
        # The pools are sized by it.
        "typical_tokens": PROMPT + 2 * new,
    }
    plain = default | {"mtp": default["mtp"] | {"enabled": False}}
    threads = settings.local.threads
    engines = {
        name: EngineProcess(chosen, threads)
        for name, chosen in (("engine", plain), ("engine_mtp", default))
    }
    try:
        for running in engines.values():
            running.wait()
        result = _measure(engines, directory, new, repeats)
        result.sizes["decoder_threads"] = settings.llm.decoder_threads or "one for each core"
        return result
    finally:
        for running in engines.values():
            running.stop()


def _measure(engines: dict[str, EngineProcess], directory: Path, new: int, repeats: int) -> Result:
    model = load_oracle(directory)
    figures: dict[str, Figure | float] = {}
    bars: dict[str, Bar] = {}
    chosen: dict[str, Any] = {}
    for batch, bound in BARS.items():
        chosen[str(batch)] = _fastest_setting(model, batch)
        sides: dict[str, Callable[..., float]] = {
            **{name: partial(_engine, running) for name, running in engines.items()},
            "transformers": partial(_generate, model),
        }
        for name in engines:
            # Long enough for MTP's choice to settle.
            sides[name](batch, 32, seed=0)
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for i in range(repeats):
            for name, side in sides.items():
                rates[name].append(batch * new / side(batch, new, seed=i + 1))
        for name, readings in rates.items():
            figures[f"{name}_{batch}_tokens_per_s"] = Figure.of(readings)
            if name in engines:
                pairs = zip(readings, rates["transformers"], strict=True)
                figures[f"{name}_{batch}_ratio"] = Figure.of([a / b for a, b in pairs])
        ratio = figures[f"engine_{batch}_ratio"]
        assert isinstance(ratio, Figure)
        bars[f"ratio_{batch}"] = Bar(ratio.median, at_least=bound)
    sizes = {
        "prompt": PROMPT,
        "new_tokens": new,
        "repeats": repeats,
        "modes": {"engine": "without MTP", "engine_mtp": "MTP where it pays (the default)"},
        "transformers": chosen,
    }
    return Result(sizes, figures, bars)


def _prompts(batch: int, seed: int) -> torch.Tensor:
    """New ones for every seed, so that the engine's prefix cache does not help."""
    generator = torch.Generator().manual_seed(1000 * batch + seed)
    return torch.randint(0, 256, (batch, PROMPT), generator=generator)


def _engine(running: EngineProcess, batch: int, new: int, seed: int) -> float:
    """Seconds for one batch."""
    prompts = _prompts(batch, seed).tolist()
    sampling = {"temperature": 0.0, "max_new_tokens": new, "ignore_eos": True}
    return running.call("generate", input_ids=prompts, sampling_params=sampling)[0]


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


def _fastest_setting(model: Any, batch: int) -> dict[str, Any]:
    seconds = {}
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        torch.set_num_threads(threads)
        for name in ("eager", "batched_mm", "grouped_mm"):
            model.set_experts_implementation(name)
            _generate(model, batch, 2, seed=0)
            seconds[name, threads] = _generate(model, batch, 8, seed=0)
    best = min(seconds, key=lambda setting: seconds[setting])
    model.set_experts_implementation(best[0])
    torch.set_num_threads(best[1])
    return {"experts": best[0], "threads": best[1]}
