"""Latency of a one-token text chat through the application against SGLang's own HTTP server.

Both serve the same checkpoint with the same engine arguments on the same machine at the same
time; requests alternate between them.
"""

from __future__ import annotations

import random
import time

import httpx

from app.settings import checkpoint_directory, config_path, load_settings
from bench.application import application
from bench.result import Figure, Result
from bench.sglang_server import sglang_server
from llm.arguments import engine_arguments


def run(quick: bool) -> Result:
    requests = 60 if quick else 400
    settings = load_settings(config_path(None))
    arguments = engine_arguments(
        settings.llm.model_dump()
        | {
            "model_path": str(checkpoint_directory(settings)),
            "served_name": settings.model.served_name,
        }
    )
    with application() as ours, sglang_server(arguments) as theirs, httpx.Client() as client:
        sides = {"application": ours.url, "sglang": theirs}
        times: dict[str, list[float]] = {name: [] for name in sides}
        for i in range(-10, requests):
            for name, url in sides.items():
                seconds = _ask(client, url, settings.model.served_name, i)
                if i >= 0:
                    times[name].append(seconds)
    figures = {f"{name}_ms": Figure.of([s * 1e3 for s in t]) for name, t in times.items()}
    ratio = figures["application_ms"].median / figures["sglang_ms"].median
    return Result(
        {"requests_per_side": requests, "prompt": "text", "tokens": 1},
        {**figures, "p50_ratio": ratio},
    )


def _ask(client: httpx.Client, url: str, model: str, seed: int) -> float:
    """Seconds for one chat; each prompt is new, so that no side answers from its prefix cache."""
    words = random.Random(seed).choices(["red", "blue", "one", "two", "circle", "square"], k=12)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{seed} " + " ".join(words)}],
        "max_tokens": 1,
        "temperature": 0,
    }
    start = time.perf_counter()
    reply = client.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    seconds = time.perf_counter() - start
    reply.raise_for_status()
    return seconds
