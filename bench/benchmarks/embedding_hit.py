"""A known picture, sound or clip against a new one and against text: HTTP request to the engine.

Requests of one token through the running application, one at a time: text of as many tokens, a
known item and a new item in turn. Every question is new; what comes before it is in the engine's
prefix cache for text and known items, as it is in a conversation. Engine processes note when an
item's rows are there and whether they lie in the store's own memory; the encoders' counters tell
whether anything was decoded for a known item, which ends the benchmark.
"""

from __future__ import annotations

import base64
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from app.settings import config_path, load_settings
from bench.application import application
from bench.encoders import jpeg
from bench.result import Bar, Figure, Result
from tools.sample_media import beeps, frames, write_clip, write_wav

SIDES = (64, 256, 512, 1024)
# Above a text request, p50, in milliseconds.
LIMIT_MS = 5.0
# `llm.handover.TRACE_ENV`, without importing the engine.
TRACE_ENV = "OMNISERVE_ROWS_TRACE"

Part = dict[str, Any]
Make = Callable[[int], Part]


def run(quick: bool) -> Result:
    rounds = 24 if quick else 120
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        trace.touch()
        kinds = _kinds(Path(folder))
        os.environ[TRACE_ENV] = str(trace)
        try:
            with application() as running, httpx.Client(base_url=running.url, timeout=60) as client:
                return _measure(Asker(client, trace), kinds, rounds)
        finally:
            del os.environ[TRACE_ENV]


class Asker:
    """Sends chats and tells how long they took."""

    def __init__(self, client: httpx.Client, trace: Path) -> None:
        self._client = client
        self._trace = trace
        self._questions = random.Random(5)
        self.prompt_tokens = 0
        self._model = load_settings(config_path(None)).model.served_name
        self.copied = 0

    def ask(self, *parts: Part) -> tuple[float, float | None]:
        """Milliseconds to the answer, and to an item's rows in the engine."""
        words = self._questions.choices(["red", "blue", "one", "two", "circle", "square"], k=12)
        question = {"type": "text", "text": " ".join(words)}
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": [*parts, question]}],
            "max_tokens": 1,
            "temperature": 0,
        }
        content = json.dumps(body).encode()
        seen = len(self._lines())
        start = time.monotonic()
        reply = self._client.post(
            "/v1/chat/completions", content=content, headers={"content-type": "application/json"}
        )
        total = time.monotonic() - start
        self.prompt_tokens = reply.raise_for_status().json()["usage"]["prompt_tokens"]
        arrived = [json.loads(line) for line in self._lines()[seen:]]
        self.copied += sum(not line["mapped"] for line in arrived)
        rows = max((line["monotonic"] for line in arrived), default=None)
        return total * 1e3, None if rows is None else (rows - start) * 1e3

    def text_like(self, *parts: Part) -> Part:
        """Text that takes about as many tokens as `parts` do."""
        self.ask(*parts)
        wanted = self.prompt_tokens
        self.ask()
        short = self.prompt_tokens
        self.ask({"type": "text", "text": "red " * 100})
        count = (wanted - short) * 100 / (self.prompt_tokens - short)
        return {"type": "text", "text": "red " * max(1, round(count))}

    def work(self) -> tuple[Any, ...]:
        """What the encoders have encoded and prepared so far."""
        stats = self._client.get("/stats").raise_for_status().json()
        names = ("items", "batches", "preparation_seconds")
        return tuple(stats[f"{kind} encoder"].get(n) for kind in ("image", "audio") for n in names)

    def _lines(self) -> list[str]:
        return self._trace.read_text().splitlines()


def _measure(asker: Asker, kinds: dict[str, tuple[Make, int]], rounds: int) -> Result:
    result = Result({"rounds": rounds, "image_sides": list(SIDES), "tokens": 1})
    for _ in range(10):
        asker.ask()
    over: dict[str, float] = {}
    for name, (make, share) in kinds.items():
        readings: dict[str, list[float]] = {}
        known = make(0)
        text = asker.text_like(known)
        for _ in range(3):
            asker.ask(known)
            asker.ask(text)
        for index in range(1, max(4, rounds // share) + 1):
            readings.setdefault("text", []).append(asker.ask(text)[0])
            before = asker.work()
            _note(readings, "hit", asker.ask(known))
            if asker.work() != before:
                raise AssertionError(f"a known {name} was decoded or encoded again")
            _note(readings, "encode", asker.ask(make(index)))
        for what, values in readings.items():
            result.figures[f"{name}_{what}_ms"] = Figure.of(values)
        pairs = zip(readings["hit"], readings["text"], strict=True)
        over[name] = statistics.median(hit - text for hit, text in pairs)
        result.figures[f"{name}_hit_over_text_ms"] = over[name]
        # Part of that time is the way of the body through the proxy.
        result.figures[f"{name}_body_bytes"] = float(len(json.dumps(known)))
    result.figures["copies_store_to_engine"] = float(asker.copied)
    worst = max(value for name, value in over.items() if name.startswith("image"))
    result.bars["hit_over_text_ms"] = Bar(worst, at_most=LIMIT_MS)
    result.bars["copies_store_to_engine"] = Bar(asker.copied, at_most=0)
    return result


def _note(readings: dict[str, list[float]], name: str, times: tuple[float, float | None]) -> None:
    total, rows = times
    if rows is None:
        raise AssertionError("no rows reached the engine from the store")
    readings.setdefault(name, []).append(total)
    readings.setdefault(f"{name}_to_rows", []).append(rows)


def _kinds(folder: Path) -> dict[str, tuple[Make, int]]:
    """What makes an item of each kind, and how many times fewer rounds it gets."""

    def image(side: int) -> Make:
        return lambda seed: _part("image_url", "image/jpeg", jpeg(side, side, seed))

    def sound(seed: int) -> Part:
        path = folder / "sound.wav"
        write_wav(path, beeps(1 + seed % 7, 2.0 + seed / 100))
        return _part("audio_url", "audio/wav", path.read_bytes())

    def clip(seed: int) -> Part:
        path = folder / "clip.mp4"
        write_clip(path, frames(2.0 + seed / 6, 6), 6, beeps(2, 2.0 + seed / 6))
        return _part("video_url", "video/mp4", path.read_bytes())

    images = {f"image_{side}": (image(side), 1 + side // 512) for side in SIDES}
    return {**images, "sound_2s": (sound, 2), "clip_2s": (clip, 4)}


def _part(kind: str, media_type: str, data: bytes) -> Part:
    uri = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return {"type": kind, kind: {"url": uri}}
