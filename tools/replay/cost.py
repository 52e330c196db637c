"""How long a forward pass takes, and fitting that to measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.replay.geometry import V25, Geometry


@dataclass(frozen=True)
class CostModel:
    """Seconds of forward passes of a group of ``ranks`` attention ranks in lock step.

    A prefill pass of ``n_r`` new tokens on rank ``r``, ``p_r`` pairs of a new token and one it
    attends: ``step + token * ((1 - local) * sum n + local * ranks * max n_r) + pair * ranks *
    max p_r``. ``token`` and ``pair`` are those of the whole group's processors, of which each
    rank has its share; experts are common, attention is a rank's own, and all wait for the last
    in every layer.

    A decode pass of ``b`` requests with ``c_r`` tokens of context on rank ``r``:
    ``decode_step + decode_request * b + decode_context * ranks * max c_r``, and yields ``accept``
    tokens for each.
    """

    step_s: float
    token_s: float
    pair_s: float
    decode_step_s: float
    decode_request_s: float
    decode_context_s: float
    accept: float = 1.0
    ranks: int = 1
    local_share: float = 1.0
    host_bytes_s: float = math.inf
    store_bytes_s: float = math.inf
    store_latency_s: float = 0.0
    # Loads run layer by layer beside the computation of earlier layers.
    load_overlaps: bool = True
    # Everything outside the engine: gateway, routing, network.
    fixed_s: float = 0.0
    # Before that: requests pass the gateway one after the other.
    gateway_s: float = 0.0
    # So many groups share one host's processors; a pass that begins while another of them works
    # takes ``crowding`` times as long.
    groups_per_host: int = 1
    crowding: float = 1.0

    def prefill_s(self, total: int, most: int, pairs: float) -> float:
        """``total`` new tokens in the group, ``most`` and ``pairs`` on its busiest rank."""
        local = self.local_share
        return (
            self.step_s
            + self.token_s * ((1 - local) * total + local * self.ranks * most)
            + self.pair_s * self.ranks * pairs
        )

    def decode_s(self, requests: int, context: float) -> float:
        """One pass over ``requests`` requests, ``context`` tokens on the busiest rank."""
        return (
            self.decode_step_s
            + self.decode_request_s * requests
            + self.decode_context_s * self.ranks * context
        )

    def request_s(self, tokens: int, hit: int, chunk: int) -> float:
        """Prefill time of one request alone on its group, ``hit`` of its tokens cached."""
        seconds = 0.0
        done = hit
        while done < tokens:
            n = min(chunk, tokens - done)
            seconds += self.prefill_s(n, n, pairs(n, done))
            done += n
        return seconds


def pairs(new: int, before: int) -> float:
    """Query-key pairs of ``new`` tokens after ``before`` earlier ones, under a causal mask."""
    return new * (before + new / 2)


# Published figures the model of H200 nodes rests on, and the assumptions beside them.
H200_FP8_FLOPS = 1.979e15  # dense, per GPU
H200_BYTES_S = 4.8e12  # memory bandwidth per GPU
H200_BYTES = 141e9
# Assumed: what large chunks reach of the peak, and of the bandwidth in decode.
FLOPS_SHARE = 0.3
BYTES_SHARE = 0.7
# With 16K chunks, throughput at a prefix of 1M tokens over that without one (report, figure 7).
CHUNK = 16384
FAR_PREFIX = 1_000_000
FAR_THROUGHPUT = 0.12
# 150 tokens/s per request at 16 requests on each of 2 ranks, kept to 64K tokens of input, with
# 3.6 tokens accepted per pass (SGLang's H200 benchmark of V2-Flash).
DECODE_TOKENS_S, DECODE_REQUESTS, DECODE_CONTEXT, DECODE_ACCEPT = 150.0, 32, 65536, 3.6
# Launching a prefill pass: scheduling and kernel launches. Assumed.
LAUNCH_S = 0.004
# Host to device over PCIe 5 (8 links) and from the store by RDMA (report, section 3.2).
HOST_BYTES_S, STORE_BYTES_S, STORE_LATENCY_S = 8 * 50e9, 170e9, 280e-6


def h200_node(geometry: Geometry, gpus: int = 8, ranks: int = 1) -> CostModel:
    """A cost model of ``gpus`` H200 as one group of ``ranks`` attention ranks.

    Linear work follows the active parameters. Attention is scaled so that V2.5's throughput falls
    with the prefix as published, and grows with the heads of the layers that attend to all
    tokens. Decode is scaled to the published rate of a node, and its fixed part to the bytes of
    weights per GPU.
    """
    token_s = 2 * geometry.active_parameters / (gpus * H200_FP8_FLOPS * FLOPS_SHARE)
    heads = geometry.full_layers * geometry.query_heads / (V25.full_layers * V25.query_heads)
    weights = geometry.weight_bytes / gpus / (V25.weight_bytes / 8)
    return CostModel(
        step_s=LAUNCH_S,
        token_s=token_s,
        pair_s=_published_pair_s() * heads * 8 / gpus,
        decode_step_s=_published_decode_step_s() * weights,
        decode_request_s=DECODE_ACCEPT * token_s,
        decode_context_s=geometry.full_bytes / (gpus * H200_BYTES_S * BYTES_SHARE),
        accept=DECODE_ACCEPT,
        ranks=ranks,
        local_share=min(1.0, geometry.local_share),
        host_bytes_s=HOST_BYTES_S,
        store_bytes_s=STORE_BYTES_S,
        store_latency_s=STORE_LATENCY_S,
    )


def _published_token_s() -> float:
    return 2 * V25.active_parameters / (8 * H200_FP8_FLOPS * FLOPS_SHARE)


def _published_pair_s() -> float:
    """From the fall of throughput at a far prefix: the rest of the pass is known."""
    rest = LAUNCH_S + _published_token_s() * CHUNK
    return rest * (1 / FAR_THROUGHPUT - 1) / pairs(CHUNK, FAR_PREFIX)


def _published_decode_step_s() -> float:
    """What remains of the published time per pass after the parts that grow with the batch."""
    request_s = DECODE_ACCEPT * _published_token_s()
    context_s = V25.full_bytes / (8 * H200_BYTES_S * BYTES_SHARE)
    return DECODE_ACCEPT / DECODE_TOKENS_S - DECODE_REQUESTS * (
        request_s + context_s * DECODE_CONTEXT
    )


@dataclass(frozen=True)
class PrefillReading:
    """One measured request, alone on its replica: ``seconds`` to the first token."""

    tokens: int
    hit: int
    seconds: float


@dataclass(frozen=True)
class DecodeReading:
    """One measured pass over ``requests`` requests with ``context`` tokens in all."""

    requests: int
    context: int
    seconds: float


def fit_prefill(
    readings: Sequence[PrefillReading], chunk: int, step_s: float | None = None
) -> tuple[float, float, float, float]:
    """``fixed_s, step_s, token_s, pair_s`` by least squares, none below zero.

    Each extra chunk of a request adds a step, of ``step_s`` where that is known already. Raises
    ValueError with fewer than four readings.
    """
    if len(readings) < 4:
        raise ValueError(f"fitting prefill needs at least 4 readings, not {len(readings)}")
    rows, seconds = [], []
    for r in readings:
        done, total = r.hit, 0.0
        while done < r.tokens:
            n = min(chunk, r.tokens - done)
            total += pairs(n, done)
            done += n
        new = r.tokens - r.hit
        extra = -(-new // chunk) - 1
        rows.append((1.0, float(extra) if step_s is None else 0.0, float(new), total))
        seconds.append(r.seconds - extra * (step_s or 0.0))
    fixed, step, token, pair = _non_negative(np.array(rows), np.array(seconds))
    return fixed, step if step_s is None else step_s, token, pair


def fit_decode(readings: Sequence[DecodeReading]) -> tuple[float, float, float]:
    """``decode_step_s, decode_request_s, decode_context_s`` by least squares, none below zero."""
    if len(readings) < 3:
        raise ValueError(f"fitting decode needs at least 3 readings, not {len(readings)}")
    rows = np.array([(1.0, float(r.requests), float(r.context)) for r in readings])
    step, request, context = _non_negative(rows, np.array([r.seconds for r in readings]))
    return step, request, context


def _non_negative(rows: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Least squares on relative errors, leaving out coefficients that come out below zero."""
    weighted = rows / seconds[:, None]
    ones = np.ones(len(seconds))
    free = list(range(rows.shape[1]))
    while free:
        solution, *_ = np.linalg.lstsq(weighted[:, free], ones, rcond=None)
        if solution.min() >= 0:
            break
        free.pop(int(solution.argmin()))
    result = [0.0] * rows.shape[1]
    for column, value in zip(free, solution if free else [], strict=True):
        result[column] = float(value)
    return result
