"""An engine with every tier, for tests; as a program, its first life, to be killed.

``python -m tests.llm.tier_engine CHECKPOINT STORE`` answers the conversations, prints what it saw
as one line of JSON and then keeps writing to the store until somebody kills it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from app.settings.tiers import TierSettings
from tests.llm.engines import SETTINGS, greedy, random_prompt

PAGE = 16
NEW = 24
# Small enough that six conversations of up to 500 tokens push each other out.
CHANGES: dict[str, Any] = {
    "page_size": PAGE,
    "max_total_tokens": 1024,
    "swa_full_tokens_ratio": 0.6,
    "max_running_requests": 2,
}
SYSTEM = random_prompt(160, 1)


def tiers(store: Path) -> dict[str, Any]:
    """The settings' section: L2 of twice the device's pools, L3 of a small and a large tier."""
    section = {
        "host": {"ratio": 2.0},
        "store": {
            "memory_path": str(store / "memory"),
            "memory_bytes": 2**23,
            "disk_path": str(store / "disk"),
            "disk_bytes": 2**28,
            "timeout_s": 30.0,
            "min_tokens": PAGE,
            "prefetch": "wait_complete",
            "touch_interval_s": 0.0,
        },
        "swa_tails": [64, 128],
    }
    return TierSettings.model_validate(section).model_dump()


def settings(checkpoint: Path, store: Path) -> dict[str, Any]:
    mtp = {"enabled": True, "steps": 3, "adaptive": False}
    changes = CHANGES | {"model_path": str(checkpoint), "tiers": tiers(store), "mtp": mtp}
    return SETTINGS | changes


def conversations() -> list[list[int]]:
    """Prompts in the order of their sending: shared beginnings, growing turns, forks, repeats."""
    prompts = [
        SYSTEM + random_prompt(90 * turn + 7 * chat, 100 + chat)
        for turn in (1, 2, 3)
        for chat in range(5)
    ]
    fork = prompts[5][:230] + random_prompt(80, 7)
    return [*prompts, fork, prompts[0], prompts[7], SYSTEM + random_prompt(40, 8), fork]


def answer(engine: Any, prompt: list[int], new: int = NEW) -> dict[str, Any]:
    """Greedy tokens, where the prompt's cached tokens came from, and the verify steps."""
    out = engine.generate(input_ids=prompt, sampling_params=greedy(new))
    meta = out["meta_info"]
    details = meta.get("cached_tokens_details") or {}
    return {
        "tokens": out["output_ids"],
        "cached": {tier: details.get(tier, 0) for tier in ("device", "host", "storage")},
        "steps": meta.get("spec_verify_ct"),
    }


def main(checkpoint: str, store: str) -> None:
    from llm import engine
    from llm.arguments import engine_arguments

    options = settings(Path(checkpoint), Path(store))
    engine.prepare(options)
    running = engine.start(engine_arguments(options))
    seen = [answer(running, prompt) for prompt in conversations()]
    print(json.dumps(seen), flush=True)
    seed = 1000
    while True:
        answer(running, random_prompt(400, seed), 1)
        seed += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
