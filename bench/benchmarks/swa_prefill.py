"""Prefill time of the CPU decoder by prompt length: window layers against all-full attention.

Three stacks of the configured model's shapes, random weights: as configured, all layers full, and
window layers that see only the query itself, which is what the ratio of layers allows (their
attention costs nothing then). A fourth has the window layers alone; its exponent is the slope of
log time over log length (least squares over medians). Readings alternate between the stacks.
"""

from __future__ import annotations

import json
import math
import os

from app.settings import checkpoint_directory, config_path, load_settings
from bench.decoder import Prefill
from bench.result import Bar, Figure, Result
from llm.cpu.native import kernel


def run(quick: bool) -> Result:
    lengths = [1024, 2048, 4096, 8192] if quick else [1024, 2048, 4096, 8192, 16384]
    repeats = 2 if quick else 3
    found = kernel()
    if found is None:
        raise RuntimeError("the decoder kernel is not built; run make env")
    threads = len(os.sched_getaffinity(0))
    found.use_threads(threads)
    config = json.loads(
        (checkpoint_directory(load_settings(config_path(None))) / "config.json").read_text()
    )
    pattern, window = config["hybrid_layer_pattern"], config["sliding_window_size"]
    of_window = [i for i, kind in enumerate(pattern) if kind]
    stacks = {
        name: Prefill.of(found, config, [w if kind else -1 for kind in pattern], lengths[-1], only)
        for name, w, only in (
            ("configured", window, None),
            ("full", -1, None),
            ("allowed", 0, None),
            ("window_layers", window, of_window),
        )
    }
    figures: dict[str, Figure | float] = {}
    medians: dict[str, list[float]] = {name: [] for name in stacks}
    for length in lengths:
        readings: dict[str, list[float]] = {name: [] for name in stacks}
        for i in range(repeats):
            for name, stack in stacks.items():
                if i == 0 and length == lengths[0]:
                    stack.seconds(length)
                readings[name].append(stack.seconds(length) * 1e3)
        for name, milliseconds in readings.items():
            figure = figures[f"{name}_{length}_ms"] = Figure.of(milliseconds)
            medians[name].append(figure.median)
    exponents = {name: slope(lengths, times) for name, times in medians.items()}
    figures |= {f"{name}_exponent": exponent for name, exponent in exponents.items()}
    longest = {name: times[-1] for name, times in medians.items()}
    speed_up = longest["full"] / longest["configured"]
    allowed = longest["full"] / longest["allowed"]
    figures |= {"speed_up_at_longest": speed_up, "allowed_speed_up_at_longest": allowed}
    sizes = {
        "lengths": lengths,
        "repeats": repeats,
        "threads": threads,
        "window": window,
        "layers": {"full": len(pattern) - len(of_window), "window": len(of_window)},
    }
    return Result(
        sizes,
        figures,
        {
            "window_layers_exponent": Bar(exponents["window_layers"], at_most=1.1),
            "share_of_allowed_speed_up": Bar(speed_up / allowed, at_least=0.8),
        },
    )


def slope(lengths: list[int], times: list[float]) -> float:
    """Exponent b of the least-squares fit times = a * lengths ** b."""
    x = [math.log(n) for n in lengths]
    y = [math.log(t) for t in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)
