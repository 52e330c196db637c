"""Reading the public traces: Mooncake (JSON lines) and Azure (CSV)."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import numpy as np

from tools.replay.workload import Floats, Workload, offsets_of

MOONCAKE_BLOCK = 512
TICK_ERROR_S = 0.01
FOLDER_VARIABLE = "OMNISERVE_TRACES"
MOONCAKE = {"conversation": "mooncake_conversation.jsonl", "synthetic": "mooncake_synthetic.jsonl"}
AZURE = {"azure-code": "azure_2023_code.csv", "azure-conv": "azure_2023_conv.csv"}


def folder() -> Path:
    """Where the traces are: ``OMNISERVE_TRACES``, or ``shared/traces`` beside or in the tree.

    Raises FileNotFoundError saying where they were looked for and where they come from.
    """
    root = Path(__file__).resolve().parents[2]
    named = os.environ.get(FOLDER_VARIABLE)
    places = [Path(named)] if named else [root / "../shared/traces", root / "shared/traces"]
    for place in places:
        if place.is_dir():
            return place.resolve()
    raise FileNotFoundError(
        f"no traces in {', '.join(str(p) for p in places)}; set {FOLDER_VARIABLE} to a folder with "
        "the files of kvcache-ai/Mooncake (FAST25 release), Azure/AzurePublicDataset (2023) and "
        "alibaba/ServeGen (mm-image), named as in tools/replay/traces.py"
    )


def load(name: str) -> Workload:
    """A trace by name (the keys of MOONCAKE and AZURE).

    Raises KeyError naming what there is, FileNotFoundError without the file.
    """
    if name in MOONCAKE:
        return mooncake(name, folder() / MOONCAKE[name])
    if name in AZURE:
        return azure(name, folder() / AZURE[name])
    raise KeyError(f"no trace {name!r}; there are: {', '.join([*MOONCAKE, *AZURE])}")


def mooncake(name: str, path: Path) -> Workload:
    """One request a line: ``timestamp`` ms, ``input_length``, ``output_length``, ``hash_ids``.

    Raises ValueError naming the line that is not so.
    """
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            rows.append(
                (
                    row["timestamp"] / 1e3,
                    int(row["input_length"]),
                    int(row["output_length"]),
                    [int(h) for h in row["hash_ids"]],
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from error
    rows.sort(key=lambda r: r[0])
    arrival = spread_ticks(np.array([r[0] for r in rows], np.float64))
    paths = [r[3] for r in rows]
    workload = Workload(
        name,
        MOONCAKE_BLOCK,
        arrival,
        arrival,
        np.array([r[1] for r in rows], np.int64),
        np.maximum(1, np.array([r[2] for r in rows], np.int64)),
        offsets_of([len(p) for p in paths]),
        np.array([h for p in paths for h in p], np.int64),
        np.array(sessions(paths, [r[1] // MOONCAKE_BLOCK for r in rows]), np.int64),
        ("Mooncake FAST25 release (kvcache-ai/Mooncake, Apache-2.0)",),
    )
    workload.check()
    return workload


def spread_ticks(times: Floats) -> Floats:
    """Sorted times [n], where most of them are multiples of a tick that several requests share.

    Mooncake's conversations are recorded in ticks of 3 s, give or take 3 ms. Requests of a tick
    are spread over it by chance (always the same), in their order: together at its start they
    would be bursts that nobody sent. Other times are left as they are.
    """
    gaps = np.diff(np.unique(times))
    gaps = gaps[gaps > TICK_ERROR_S]
    if not len(gaps) or len(gaps) > len(times) / 2:
        return times
    number = np.round(times / np.median(gaps))
    tick = times[-1] / number[-1]
    if np.abs(times - number * tick).max() > tick / 4:
        return times
    return np.sort((number + np.random.default_rng(0).random(len(times))) * tick)


def azure(name: str, path: Path) -> Workload:
    """``TIMESTAMP,ContextTokens,GeneratedTokens``; no prefix is known to be shared."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        # Seven decimals; datetime takes six.
        times = [datetime.fromisoformat(r["TIMESTAMP"][:26]).timestamp() for r in rows]
        tokens = np.array([int(r["ContextTokens"]) for r in rows], np.int64)
        output = np.array([int(r["GeneratedTokens"]) for r in rows], np.int64)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    order = np.argsort(times, kind="stable")
    arrival = np.array(times)[order] - min(times)
    tokens = np.maximum(1, tokens[order])
    counts = -(-tokens // MOONCAKE_BLOCK)
    workload = Workload(
        name,
        MOONCAKE_BLOCK,
        arrival,
        arrival,
        tokens,
        np.maximum(1, output[order]),
        offsets_of(counts.tolist()),
        np.arange(int(counts.sum()), dtype=np.int64),
        np.arange(len(tokens), dtype=np.int64),
        ("Azure LLM inference trace 2023 (Azure/AzurePublicDataset, CC-BY-4.0)",),
    )
    workload.check()
    return workload


def sessions(paths: Iterable[list[int]], whole: Iterable[int]) -> list[int]:
    """Session numbers for requests that name none: a turn begins with a whole earlier prompt.

    ``whole``: how many blocks of each path are full. A request belongs to the session of the
    longest earlier prompt whose full blocks it begins with, if that prompt was the first with
    its last full block (else it is an instruction that many share); otherwise it opens one.
    """
    ends: dict[int, int] = {}
    seen: set[int] = set()
    result: list[int] = []
    count = 0
    for path, full in zip(paths, whole, strict=True):
        session = next((ends[b] for b in reversed(path[:full]) if b in ends), None)
        if session is None:
            session = count
            count += 1
        if full and path[full - 1] not in seen:
            ends[path[full - 1]] = session
        seen.update(path)
        result.append(session)
    return result
