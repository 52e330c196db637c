"""How far expert parallelism may shrink: memory, traffic and waiting by the size of a group."""

from __future__ import annotations

import numpy as np

from tools.replay.cost import FLOPS_SHARE, H200_BYTES, H200_FP8_FLOPS, h200_node, pairs
from tools.replay.fleets import CHUNK, MEMORY_SHARE, WINDOW_RATIO
from tools.replay.geometry import MODELS, Geometry
from tools.replay.questions import Answer, Row, _describe
from tools.replay.workload import Workload

NODE_GPUS = 8
# Assumed: bytes per second that one GPU exchanges with GPUs of other nodes (400 Gbit/s), half of it
# reached; traffic within a node is not counted. A hidden state is sent as fp8 and returns as bf16.
LINK_BYTES_S = 50e9 * 0.5
DISPATCH_BYTES, COMBINE_BYTES = 1, 2


def experts(
    workload: Workload, model: str, sizes: tuple[int, ...], attention_gpus: int, seed: int
) -> Answer:
    """Groups of ``sizes`` GPUs: KV room, the longest prompt that fits, and prefill throughput.

    A group of ``e`` GPUs shares the experts and has ``e / attention_gpus`` attention ranks. A pass
    takes the linear work of all ranks, the traffic of tokens to experts on other nodes, and the
    slowest rank's attention, drawn from the workload's prompts.
    """
    geometry = MODELS[model]
    answer = Answer(
        "How far may expert parallelism shrink?",
        _describe(workload, model=model, GPUs_per_attention_rank=attention_gpus, seed=seed),
        plot=("GPUs in a group", ("input tok/s per GPU", "KV tokens per rank, window")),
    )
    rng = np.random.default_rng(seed)
    for size in sizes:
        answer.rows.append(_row(geometry, model, size, attention_gpus, workload, rng))
    fitting = [r for r in answer.rows if float(r["KV tokens per rank, window"]) > 0]
    if fitting:
        best = max(fitting, key=lambda r: float(r["input tok/s per GPU"]))
        answer.sentences.append(
            f"Most input throughput per GPU: groups of {best['GPUs in a group']} GPUs."
        )
    return answer


def _row(
    geometry: Geometry,
    model: str,
    size: int,
    attention_gpus: int,
    workload: Workload,
    rng: np.random.Generator,
) -> Row:
    ranks = size // attention_gpus
    weights = geometry.weight_bytes
    # Attention and dense weights are on every rank; experts once in the group.
    per_gpu = weights * geometry.expert_share / size + weights * (1 - geometry.expert_share) / (
        attention_gpus
    )
    room = (H200_BYTES * MEMORY_SHARE[model] - per_gpu) * attention_gpus
    row: Row = {"GPUs in a group": size, "weights GB per GPU": per_gpu / 1e9}
    for name, shown in (("window", geometry), ("no window", geometry.without_window())):
        per_token = shown.full_bytes + WINDOW_RATIO * shown.window_bytes
        row[f"KV tokens per rank, {name}"] = max(0, int(room / per_token))
    seconds, tokens = _pass(geometry, model, size, ranks, workload, rng)
    row["pass ms"] = 1e3 * seconds
    row["input tok/s per GPU"] = tokens / seconds / size if room > 0 else 0.0
    return row


def _pass(
    geometry: Geometry,
    model: str,
    size: int,
    ranks: int,
    workload: Workload,
    rng: np.random.Generator,
) -> tuple[float, int]:
    """Mean seconds of a prefill pass of one chunk on each rank, and its tokens."""
    cost, chunk = h200_node(geometry, size, ranks), CHUNK[model]
    linear = chunk * ranks * 2 * geometry.active_parameters / (size * H200_FP8_FLOPS * FLOPS_SHARE)
    elsewhere = max(0.0, 1 - NODE_GPUS / size)
    layers = geometry.full_layers + geometry.window_layers - 1
    moved = DISPATCH_BYTES + COMBINE_BYTES
    # A token goes once to every node that has one of its experts.
    nodes = max(1, size // NODE_GPUS)
    reached = nodes * (1 - (1 - 1 / nodes) ** geometry.experts_per_token)
    traffic = (
        chunk * ranks / size * layers * geometry.hidden * moved * reached * elsewhere / LINK_BYTES_S
    )
    # The slowest of the ranks' attention, each in the middle of some prompt, weighted by work.
    lengths = workload.input_tokens
    picks = rng.choice(lengths, (2000, ranks), p=lengths / lengths.sum())
    before = picks * rng.uniform(0, 1, picks.shape)
    work = np.minimum(chunk, picks) * before + pairs(chunk, 0)
    attention = cost.pair_s * ranks * work.max(axis=1).mean()
    return cost.step_s + linear + traffic + float(attention), chunk * ranks
