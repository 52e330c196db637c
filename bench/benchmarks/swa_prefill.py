"""Prefill time of one attention layer by prompt length: blocked window form against full.

Both sides have the shapes of the configured model's window layers; readings alternate between
them. The exponent is the slope of log time over log length (least squares over medians).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from functools import partial

import torch

from app.settings import checkpoint_directory, config_path, load_settings
from bench.result import Bar, Figure, Result
from llm.cpu.attend import Part, prefill_full, prefill_window


def run(quick: bool) -> Result:
    lengths = [1024, 2048, 4096, 8192] if quick else [1024, 2048, 4096, 8192, 16384]
    repeats = 3 if quick else 7
    shape = _shape()
    window, scale = shape["window"], shape["key_width"] ** -0.5
    figures: dict[str, Figure | float] = {}
    medians: dict[str, list[float]] = {"window": [], "full": []}
    for length in lengths:
        q = torch.randn(length, shape["heads"], shape["key_width"])
        k = torch.randn(length, shape["kv_heads"], shape["key_width"])
        v = torch.randn(length, shape["kv_heads"], shape["value_width"])
        sides: dict[str, Callable[[], Part]] = {
            "window": partial(prefill_window, q, k, v, scale, window, None),
            "full": partial(prefill_full, q, k, v, scale, None),
        }
        readings: dict[str, list[float]] = {name: [] for name in sides}
        for i in range(-1, repeats):
            for name, side in sides.items():
                start = time.perf_counter()
                with torch.inference_mode():
                    side()
                if i >= 0:
                    readings[name].append((time.perf_counter() - start) * 1e3)
        for name, milliseconds in readings.items():
            figure = figures[f"{name}_{length}_ms"] = Figure.of(milliseconds)
            medians[name].append(figure.median)
    exponents = {name: slope(lengths, times) for name, times in medians.items()}
    figures |= {f"{name}_exponent": exponent for name, exponent in exponents.items()}
    figures["speed_up_at_longest"] = medians["full"][-1] / medians["window"][-1]
    return Result(
        {"lengths": lengths, "repeats": repeats, "threads": torch.get_num_threads(), **shape},
        figures,
        {"window_exponent": Bar(exponents["window"], at_most=1.1)},
    )


def slope(lengths: list[int], times: list[float]) -> float:
    """Exponent b of the least-squares fit times = a * lengths ** b."""
    x = [math.log(n) for n in lengths]
    y = [math.log(t) for t in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def _shape() -> dict[str, int]:
    """Geometry of a window layer, from the configured checkpoint."""
    directory = checkpoint_directory(load_settings(config_path(None)))
    config = json.loads((directory / "config.json").read_text())
    return {
        "window": config["sliding_window_size"],
        "heads": config["swa_num_attention_heads"],
        "kv_heads": config["swa_num_key_value_heads"],
        "key_width": config["swa_head_dim"],
        "value_width": config["swa_v_head_dim"],
    }
