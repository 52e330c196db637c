"""Per-request seeds: equal seeds give equal samples, alone or in any batch.

SGLang honours seeds only in a mode that gives every request without one the same seed. Here a
request without a seed gets a random one, and the choices of one request get different ones.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any

import torch

from llm.request_ids import choice_of

# Odd, so that choices of neighbouring seeds do not coincide.
_CHOICE_STEP = 0x9E3779B97F4A7C15
_INT64 = 2**63


def seed_for(seed: int, choice: int) -> int:
    """The seed of a choice; choice 0 has the request's own. Within int64."""
    return (seed + choice * _CHOICE_STEP + _INT64) % (2 * _INT64) - _INT64


def with_seeds(from_schedule_batch: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``SamplingBatchInfo.from_schedule_batch`` (the plain function)."""

    @functools.wraps(from_schedule_batch)
    def wrapped(cls: type, batch: Any, vocab_size: int) -> Any:
        info = from_schedule_batch(cls, batch, vocab_size)
        seeds = []
        for request in batch.reqs:
            parameters = request.sampling_params
            if not hasattr(request, "seed_given"):
                request.seed_given = parameters.sampling_seed is not None
            if parameters.sampling_seed is None:
                parameters.sampling_seed = secrets.randbits(62)
            seeds.append(seed_for(parameters.sampling_seed, choice_of(request.rid)))
        info.sampling_seed = torch.tensor(seeds, dtype=torch.int64)
        return info

    return wrapped


def repeats(batch: Any) -> bool:
    """Whether a request of the batch has a seed of its own, so that its answer must repeat."""
    return any(getattr(request, "seed_given", False) for request in batch.reqs)


def with_min_p(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``top_k_top_p_min_p_sampling_from_probs_torch``, which refuses min-p with seeds.

    Dropping the tokens below ``min_p`` times the best first selects the same set, and the
    seeded sampler takes weights that do not sum to one.
    """

    @functools.wraps(sample)
    def wrapped(
        probs: torch.Tensor,
        top_ks: torch.Tensor,
        top_ps: torch.Tensor,
        min_ps: torch.Tensor,
        need_min_p_sampling: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if need_min_p_sampling:
            floor = probs.amax(-1, keepdim=True) * min_ps.view(-1, 1)
            probs = torch.where(probs < floor, 0.0, probs)
        return sample(probs, top_ks, top_ps, min_ps, False, *args, **kwargs)

    return wrapped
