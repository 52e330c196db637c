"""Engines for tests: one alive at a time, restarted only when a test asks for another kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from llm import engine
from llm.arguments import engine_arguments

SETTINGS: dict[str, Any] = {
    "served_name": "pocket",
    "device": "cpu",
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "tensor_parallel": 1,
    "attention_data_parallel": 1,
    "expert_parallel": 1,
    "context_length": 4096,
    "chunked_prefill_size": 128,
    "page_size": 1,
    "max_running_requests": 8,
    "max_waiting_requests": 64,
    "max_total_tokens": 8192,
    "mem_fraction": None,
    "swa_full_tokens_ratio": 0.25,
    "window_counts_self": False,
    "mtp": {"enabled": True, "steps": 3},
    "reasoning_parser": "mimo",
    "tool_call_parser": "mimo",
    "chat_template_kwargs": {},
    "warmup": True,
    "queue": {
        "policy": "compute_aware",
        "penalty": 1.0,
        "head_start_tokens": 65_536,
        "chunk_share": 0.5,
    },
    "router": {"policy": "kv_affinity", "block_bytes": 256},
    "extra_engine_args": {},
}


class Engines:
    """Starts SGLang engines on request and keeps the last one."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._key: str | None = None
        self._engine: Any = None

    def get(self, *, mtp: bool, adaptive: bool = True, **changes: Any) -> Any:
        settings = SETTINGS | {"model_path": str(self.checkpoint)} | changes
        settings["mtp"] = {"enabled": mtp, "steps": 3, "adaptive": adaptive}
        key = repr(sorted(settings.items(), key=str))
        if key != self._key:
            self.close()
            engine.prepare(settings)
            self._engine = engine.start(engine_arguments(settings))
            self._key = key
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
        self._engine = self._key = None


@pytest.fixture(scope="session")
def engines(pocket_checkpoint: Path) -> Iterator[Engines]:
    pool = Engines(pocket_checkpoint)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def oracle(pocket_checkpoint: Path) -> Any:
    from tools.pocket.oracle import load_oracle

    return load_oracle(pocket_checkpoint)


def random_prompt(length: int, seed: int) -> list[int]:
    """Ordinary token ids (the special ones stand at the vocabulary's end)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 700, (length,), generator=generator).tolist()


def greedy(tokens: int) -> dict[str, Any]:
    return {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}


def oracle_greedy(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """Greedy continuation by full recomputation: no cache that could hide a mistake."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def oracle_logprobs(model: Any, embeds: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [n, V] at every position of input embeddings [n, hidden]."""
    with torch.inference_mode():
        return model(inputs_embeds=embeds.unsqueeze(0)).logits[0].float().log_softmax(-1)
