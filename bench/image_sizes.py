"""Image sizes as users send them: the mix of ServeGen's multimodal trace (Alibaba, Apache-2.0)."""

from __future__ import annotations

import ast
import csv
import json
import os
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

from encoders.vision.packing import Grid

FOLDER_VARIABLE = "OMNISERVE_TRACES"
MIX = "servegen-mm-image"
SOURCE = "alibaba/ServeGen, data/multimodal/mm-image (Apache-2.0)"

# The trace has token counts only: sides are drawn from common ratios of width to height.
RATIOS = (1.0, 4 / 3, 3 / 4, 16 / 9, 9 / 16)


def mix_folder() -> Path:
    """Where the mix is: in OMNISERVE_TRACES, or in `shared/traces` beside or in the repository.

    Raises FileNotFoundError saying where it was looked for.
    """
    root = Path(__file__).resolve().parents[1]
    named = os.environ.get(FOLDER_VARIABLE)
    places = [Path(named)] if named else [root.parent / "shared/traces", root / "shared/traces"]
    for place in places:
        if (place / MIX).is_dir():
            return place / MIX
    looked = ", ".join(str(place / MIX) for place in places)
    raise FileNotFoundError(f"no {SOURCE} in {looked}; set {FOLDER_VARIABLE} to its folder")


def token_mix(folder: Path) -> Counter[int]:
    """Share of images with so many tokens, weighted by the rate of the requests they come in.

    Requests that carry no image (0 tokens) are left out. Raises ValueError for files that do not
    have the trace's form.
    """
    mix: Counter[int] = Counter()
    for path in sorted(folder.glob("chunk-*-dataset.json")):
        windows: Mapping[str, Mapping[str, str]] = json.loads(path.read_text())
        trace = path.with_name(path.name.replace("dataset.json", "trace.csv"))
        with trace.open(newline="") as file:
            rates = [(float(row[0]), float(row[1])) for row in csv.reader(file)]
        begins = sorted(map(int, windows))
        for begin, end in zip(begins, [*begins[1:], float("inf")], strict=True):
            weight = sum(rate for start, rate in rates if begin <= start < end)
            shares: dict[int, float] = ast.literal_eval(windows[str(begin)]["image_tokens"])
            for tokens, share in shares.items():
                if tokens:
                    mix[int(tokens)] += weight * share  # type: ignore[assignment]
    if not mix:
        raise ValueError(f"{folder} holds no image of the trace")
    return mix


def draw_grids(mix: Mapping[int, float], count: int, merge: int, seed: int) -> list[Grid]:
    """Grids (1, h, w) in patches of `count` images drawn from the mix, in random order.

    One image comes from each of `count` equal shares of the mix, so that small and large ones are
    as frequent in a short sample as in the mix. Each has about as many merged tokens as drawn, in
    the ratio drawn for it.
    """
    rng = random.Random(seed)
    sizes = sorted(mix)
    below = list(accumulate(mix[size] for size in sizes))
    tokens = []
    for index in range(count):
        place = (index + rng.random()) / count * below[-1]
        tokens.append(sizes[min(bisect_right(below, place), len(sizes) - 1)])
    rng.shuffle(tokens)
    grids = []
    for number in tokens:
        height = max(1, round((number / rng.choice(RATIOS)) ** 0.5))
        width = max(1, round(number / height))
        grids.append((1, height * merge, width * merge))
    return grids
